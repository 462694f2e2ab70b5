//! Calls the cancel function for the claimed rows and reads its verdicts.

use std::collections::HashSet;

use pgrx::pg_sys::Datum;

use super::batch::Trace;
use super::statements::{FIRST_KEY, KEY_JSON};
use crate::pg::call::{Function, forget_session_state};
use crate::pg::spi::Rows;
use crate::pg::{array, json};
use crate::policy::{Form, Policy, Returns};
use crate::settings;

/// What the function said of one row.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// Cancelled; with what goes into the event.
    Done { data: Option<Datum> },
    /// Not now.
    Declined,
}

impl Verdict {
    pub fn is_done(self) -> bool {
        matches!(self, Self::Done { .. })
    }
}

/// One verdict for each row. Runs under the owner's identity.
pub fn call(policy: &Policy, claimed: &Rows<'_>, in_worker: bool, trace: &Trace) -> Vec<Verdict> {
    match policy.function.form {
        Form::Keys => call_once(policy, claimed, in_worker, trace),
        Form::Row | Form::Key => call_each(policy, claimed, in_worker, trace),
    }
}

fn call_each(policy: &Policy, claimed: &Rows<'_>, in_worker: bool, trace: &Trace) -> Vec<Verdict> {
    let count = policy.function.argument_types.len();
    let first = FIRST_KEY + policy.key.len();
    let mut function = Function::prepare(policy.function.oid, count);
    (0..claimed.count)
        .map(|row| {
            let key = claimed.datum(row, KEY_JSON).expect("a key is never NULL");
            trace.calling(row, &json::bytes(key));
            let arguments: Vec<Datum> = (first..first + count)
                .map(|column| claimed.datum(row, column).expect("key columns are NOT NULL"))
                .collect();
            let verdict = function.call(&arguments, settings::cancel_timeout_ms(), |result| {
                match policy.function.returns {
                    Returns::Nothing => Verdict::Done { data: None },
                    Returns::Data => {
                        Verdict::Done { data: result.map(|data| json::from_bytes(&json::bytes(data))) }
                    }
                    Returns::Verdict if result.is_some_and(|said| said.value() != 0) => {
                        Verdict::Done { data: None }
                    }
                    Returns::Verdict => Verdict::Declined,
                    Returns::Keys => unreachable!("only the array form returns keys"),
                }
            });
            if in_worker {
                forget_session_state();
            }
            verdict
        })
        .collect()
}

fn call_once(policy: &Policy, claimed: &Rows<'_>, in_worker: bool, trace: &Trace) -> Vec<Verdict> {
    let key_type = policy.key[0].type_oid;
    let keys: Vec<Option<Datum>> = (0..claimed.count).map(|row| claimed.datum(row, FIRST_KEY)).collect();
    trace.calling_batch(claimed.count, || {
        json::bytes(claimed.datum(0, KEY_JSON).expect("a key is never NULL"))
    });
    let mut function = Function::prepare(policy.function.oid, 1);
    let argument = array::of(key_type, &keys);
    let done = Verdict::Done { data: None };
    let verdicts = function.call(&[argument], settings::cancel_timeout_ms(), |result| {
        if policy.function.returns != Returns::Keys {
            return vec![done; claimed.count];
        }
        let returned: HashSet<Vec<u8>> = result
            .map(|keys| array::values(key_type, keys))
            .into_iter()
            .flatten()
            .flatten()
            .map(|key| array::image(key_type, key))
            .collect();
        keys.iter()
            .map(|key| {
                let key = key.expect("key columns are NOT NULL");
                if returned.contains(&array::image(key_type, key)) { done } else { Verdict::Declined }
            })
            .collect()
    });
    if in_worker {
        forget_session_state();
    }
    verdicts
}
