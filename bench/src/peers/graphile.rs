//! graphile-worker: a job for each order in a table of the same database, taken by a Node.js worker that looks once
//! a second.

use std::ops::Range;

use super::worker::{Worker, run_at};
use super::{Peer, chunks, node, npm_version};
use crate::checkout::Scheme;
use crate::shop::Shop;

#[derive(Default)]
pub struct Graphile(Worker);

impl Peer for Graphile {
    fn name(&self) -> &'static str {
        "graphile-worker"
    }

    fn version(&self) -> String {
        npm_version("graphile-worker")
    }

    fn set_up(&mut self, shop: &mut Shop) {
        let mut program = node("graphile_worker.js");
        program.arg("schema");
        run_at(program, shop);
    }

    fn learn(&mut self, shop: &mut Shop, orders: Range<i64>) {
        for (start, end) in chunks(orders) {
            shop.run(&format!(
                "SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
                     SELECT ROW('cancel_order', json_build_object('id', id), NULL, pay_by, NULL, NULL, NULL, NULL)
                         ::graphile_worker.job_spec
                     FROM orders WHERE id >= {start} AND id < {end} ORDER BY pay_by))"
            ));
        }
    }

    fn forget(&mut self, shop: &mut Shop) {
        shop.run("TRUNCATE graphile_worker._private_jobs");
    }

    fn start(&mut self, shop: &mut Shop) {
        self.0.start(node("graphile_worker.js"), shop);
    }

    fn stop(&mut self, _shop: &mut Shop) {
        self.0.stop();
    }

    fn pids(&mut self) -> Vec<i32> {
        vec![self.0.pid()]
    }

    fn scheme(&self) -> Scheme {
        Scheme::with_job(
            "SELECT graphile_worker.add_job('cancel_order', json_build_object('id', id), run_at => pay_by) FROM new",
        )
    }
}
