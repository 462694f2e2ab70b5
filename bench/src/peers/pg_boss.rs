//! pg-boss: a job for each order in a table of the same database, taken by a Node.js worker that looks once a
//! second.

use std::ops::Range;

use super::worker::{Worker, run_at};
use super::{Peer, chunks, node, npm_version};
use crate::checkout::Scheme;
use crate::shop::Shop;

/// What its send() inserts, of a table with `(id, pay_by)`.
const INSERT: &str = "INSERT INTO pgboss.job (name, data, start_after, policy)
    SELECT 'cancel', jsonb_build_object('id', id), pay_by, 'standard'";

#[derive(Default)]
pub struct PgBoss(Worker);

impl Peer for PgBoss {
    fn name(&self) -> &'static str {
        "pg-boss"
    }

    fn version(&self) -> String {
        npm_version("pg-boss")
    }

    fn set_up(&mut self, shop: &mut Shop) {
        let mut program = node("pg_boss.js");
        program.arg("schema");
        run_at(program, shop);
    }

    fn learn(&mut self, shop: &mut Shop, orders: Range<i64>) {
        for (start, end) in chunks(orders) {
            shop.run(&format!("{INSERT} FROM orders WHERE id >= {start} AND id < {end} ORDER BY pay_by"));
        }
    }

    fn forget(&mut self, shop: &mut Shop) {
        shop.run("TRUNCATE pgboss.job");
    }

    fn start(&mut self, shop: &mut Shop) {
        self.0.start(node("pg_boss.js"), shop);
    }

    fn stop(&mut self, _shop: &mut Shop) {
        self.0.stop();
    }

    fn pids(&mut self) -> Vec<i32> {
        vec![self.0.pid()]
    }

    fn scheme(&self) -> Scheme {
        Scheme::with_job(&format!("{INSERT} FROM new RETURNING 1"))
    }
}
