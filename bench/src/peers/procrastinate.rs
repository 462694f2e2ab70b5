//! procrastinate: a job for each order in a table of the same database, taken by a Python worker that looks once a
//! second.

use std::ops::Range;

use super::worker::{Worker, first_line, run_at};
use super::{Peer, chunks, folder, python};
use crate::checkout::Scheme;
use crate::shop::Shop;

/// Of a job that reads `orders (id, pay_by)`.
const JOB: &str = "ROW('cancel', 'cancel_order', 0, NULL, NULL, jsonb_build_object('order_id', id), pay_by)
    ::procrastinate_job_to_defer_v1";

#[derive(Default)]
pub struct Procrastinate(Worker);

impl Peer for Procrastinate {
    fn name(&self) -> &'static str {
        "procrastinate"
    }

    fn version(&self) -> String {
        let program = "import importlib.metadata as m, sys; print(m.version('procrastinate'), 'on Python', sys.version)";
        let said =
            first_line(std::process::Command::new(folder().join("python/bin/python")).args(["-c", program]));
        said.split(" (").next().unwrap_or_default().into()
    }

    fn set_up(&mut self, shop: &mut Shop) {
        let mut program = python("procrastinate_worker.py");
        program.arg("schema");
        run_at(program, shop);
    }

    fn learn(&mut self, shop: &mut Shop, orders: Range<i64>) {
        for (start, end) in chunks(orders) {
            shop.run(&format!(
                "SELECT procrastinate_defer_jobs_v1(array_agg({JOB} ORDER BY pay_by)) FROM orders
                 WHERE id >= {start} AND id < {end}"
            ));
        }
    }

    fn forget(&mut self, shop: &mut Shop) {
        shop.run("TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers");
    }

    fn start(&mut self, shop: &mut Shop) {
        self.0.start(python("procrastinate_worker.py"), shop);
    }

    fn stop(&mut self, _shop: &mut Shop) {
        self.0.stop();
    }

    fn pids(&mut self) -> Vec<i32> {
        vec![self.0.pid()]
    }

    fn scheme(&self) -> Scheme {
        Scheme::with_job(&format!("SELECT procrastinate_defer_jobs_v1(ARRAY[{JOB}]) FROM new"))
    }
}
