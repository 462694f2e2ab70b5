//! pg_expiry with the function for an order.

use super::Peer;
use crate::checkout::Scheme;
use crate::shop::Shop;

pub struct PgExpiry;

impl Peer for PgExpiry {
    fn name(&self) -> &'static str {
        "pg_expiry"
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn start(&mut self, shop: &mut Shop) {
        shop.create_policy("cancel_order(bigint)");
        shop.wait_for_worker();
    }

    fn stop(&mut self, shop: &mut Shop) {
        shop.drop_policy();
    }

    fn scheme(&self) -> Scheme {
        Scheme::indexed()
    }

    fn has_events(&self) -> bool {
        true
    }

    fn backend_types(&self) -> Option<&'static str> {
        Some("pg\\_expiry%")
    }
}
