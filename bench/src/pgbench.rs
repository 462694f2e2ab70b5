//! pgbench as the customers of the shop.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use pg_expiry_tests::{Cluster, Signal, scratch_path, signal};

use crate::shop::Shop;

const SCRIPT: &str = "\\set sku random(1, 100)
INSERT INTO orders (id, sku, pay_by) VALUES (-nextval('order_id'), :sku, now() + interval '15 min');
";

pub struct Pgbench {
    child: Option<Child>,
    script: PathBuf,
}

impl Pgbench {
    pub fn start(cluster: &Cluster, shop: &Shop, clients: usize, seconds: u64) -> Pgbench {
        let script = scratch_path("checkout.sql");
        fs::write(&script, SCRIPT).expect("the script");
        let mut pgbench = cluster.program("pgbench");
        pgbench.args(["-n", "-M", "prepared", "-j", "2", "-c", &clients.to_string()]);
        pgbench.args(["-T", &seconds.to_string(), "-f"]).arg(&script).arg(&shop.db.name);
        let child = pgbench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pgbench");
        Pgbench { child: Some(child), script }
    }

    /// Orders a second, when the time is over.
    pub fn tps(mut self) -> f64 {
        let output = self.child.take().expect("pgbench").wait_with_output().expect("pgbench");
        let said = String::from_utf8_lossy(&output.stdout);
        let rate = said.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|rate| rate.split(' ').next()?.parse().ok());
        rate.unwrap_or_else(|| panic!("pgbench: {output:?}"))
    }
}

/// Ends it before its time.
impl Drop for Pgbench {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Not SIGINT: whoever was started in the background may have inherited that it is ignored.
            signal(child.id().cast_signed(), Signal::TERM);
            let _ = child.wait();
        }
        let _ = fs::remove_file(&self.script);
    }
}
