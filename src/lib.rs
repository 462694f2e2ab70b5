use pgrx::prelude::*;
::pgrx::pg_module_magic!(name = c"pg_expiry", version = c"0.1.0");
#[pg_extern]
fn hello() -> i32 { 1 }
