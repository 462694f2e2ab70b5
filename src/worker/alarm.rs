//! Alerts: when a policy gets into trouble, or out of it, `pg_expiry.alert_channel` is notified. What was
//! said is in `expiry.progress`, written by the transaction that says it; so it is said once, whichever
//! worker says it.

use pgrx::pg_sys;

use super::failure::in_own_transaction;
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::spi::{self, Spi};
use crate::pg::{database, json, notify, wake};
use crate::rules::alert::{Alert, Trouble, is_lagging};
use crate::rules::queue::STOP_AT;
use crate::settings;

const COUNT: usize = Trouble::ALL.len();

/// What is known of the alerts of one policy.
#[derive(Debug, Default)]
pub struct Alarm {
    /// What was said; `None`: still to be read.
    said: Option<[bool; COUNT]>,
    /// What is so; `None`: not known (yet).
    is_so: [Option<bool>; COUNT],
    reason: Option<String>,
    /// The oldest deadline of the backlog, when it was last looked at.
    oldest: Option<Timestamp>,
    /// The first look of those in a row at which it was too old.
    old_since: Option<Timestamp>,
    looked_at: Option<Timestamp>,
    took_us: i64,
}

const READ: &str = "SELECT alerts FROM expiry.progress WHERE policy = $1";

const RAISE: &str = "
INSERT INTO expiry.progress AS p (policy, alerts)
SELECT $1, ARRAY[$2] WHERE EXISTS (SELECT FROM expiry.policy WHERE name = $1)
ON CONFLICT (policy) DO UPDATE SET alerts = p.alerts || $2 WHERE $2 <> ALL (p.alerts)";

const CLEAR: &str =
    "UPDATE expiry.progress SET alerts = array_remove(alerts, $2) WHERE policy = $1 AND $2 = ANY (alerts)";

impl Alarm {
    /// It is so, or is over. Said at the next [`Self::tell`].
    pub fn note(&mut self, trouble: Trouble, is_so: bool, reason: Option<&str>) {
        self.is_so[trouble as usize] = Some(is_so);
        if is_so {
            self.reason = reason.map(str::to_owned);
        }
    }

    fn has_said(&self, trouble: Trouble) -> bool {
        self.said.is_some_and(|said| said[trouble as usize])
    }

    /// Whether it is time to see how old the backlog is: a quarter of what it may be, at most 2 % of the time.
    pub fn wants_look(&self, now: Timestamp) -> bool {
        const LEAST_US: i64 = 1_000_000;
        const MOST_US: i64 = 10_000_000;
        let quarter = (settings::alert_lag_us() / 4).clamp(LEAST_US, MOST_US);
        let is_suspected = self.old_since.is_some() && !self.has_said(Trouble::Lagging);
        let pause = if is_suspected { quarter.min(lookahead_us()) } else { quarter };
        let pause = pause.max(self.took_us * 50);
        self.looked_at.is_none_or(|looked_at| !(0..pause).contains(&now.since(looked_at)))
    }

    /// How old the backlog is; `Err`: that could not be seen.
    pub fn looked(&mut self, oldest: Result<Option<Timestamp>, PgError>, now: Timestamp) {
        (self.looked_at, self.took_us) = (Some(now), clock::now().since(now));
        let Ok(oldest) = oldest else { return };
        self.oldest = oldest;
        let overdue = oldest.map(|oldest| now.since(oldest));
        let has_said = self.has_said(Trouble::Lagging);
        let is_old = is_lagging(has_said, overdue, settings::alert_lag_us());
        self.old_since = is_old.then(|| self.old_since.unwrap_or(now));
        // A row may have come with an old deadline a moment ago; within a look ahead it has its chance.
        let had_chance = |since| !(0..lookahead_us()).contains(&now.since(since));
        let is_so = self.old_since.is_some_and(|since| has_said || had_chance(since));
        self.is_so[Trouble::Lagging as usize] = Some(is_so);
    }

    /// Reads what was said before, by this worker or another.
    pub fn read(&mut self, policy: &str) -> Result<(), PgError> {
        if self.said.is_none() {
            let said: Vec<String> = in_own_transaction(|spi| {
                let rows = spi.run_once(READ, &[(pg_sys::TEXTOID, spi::text(policy))]);
                if rows.is_empty() { Vec::new() } else { rows.expect(0, 0) }
            })?;
            self.said = Some(Trouble::ALL.map(|trouble| said.iter().any(|name| name == trouble.name())));
        }
        Ok(())
    }

    /// Says what has changed. Not while the notification queue fills up: then later.
    pub fn tell(&mut self, channel: &str, policy: &str) -> Result<(), PgError> {
        for trouble in Trouble::ALL {
            let (Some(said), Some(is_so)) = (self.said, self.is_so[trouble as usize]) else { continue };
            if said[trouble as usize] != is_so && notify::queue_usage() < STOP_AT {
                self.tell_one(channel, policy, trouble, is_so)?;
                // Only now: after an error it is to be said again.
                self.said = self.said.map(|mut said| {
                    said[trouble as usize] = is_so;
                    said
                });
            }
        }
        Ok(())
    }

    fn tell_one(&self, channel: &str, policy: &str, trouble: Trouble, is_so: bool) -> Result<(), PgError> {
        in_own_transaction(|spi| {
            let is_news = mark(spi, if is_so { RAISE } else { CLEAR }, policy, trouble);
            // Another worker was first; or it was said of each row, see `notify_quarantined`.
            if !is_news || is_so && trouble == Trouble::Quarantined {
                return;
            }
            let database = database::name(wake::own_database()).unwrap_or_default();
            let now = clock::now();
            let kind = if is_so { trouble.name() } else { "recovered" };
            let mut alert = Alert::new(kind, &database, policy, now.0);
            match trouble {
                _ if !is_so => alert.from = Some(trouble.name()),
                Trouble::Lagging => {
                    if let Some(oldest) = self.oldest {
                        alert = alert.lagging(oldest.0, now.since(oldest));
                    }
                }
                Trouble::Tripped | Trouble::Stopped | Trouble::Quarantined => {
                    alert = alert.because(self.reason.as_deref());
                }
            }
            notify::notify(channel, &alert.payload());
        })
    }
}

fn lookahead_us() -> i64 {
    settings::lookahead_ms() * 1000
}

/// Whether that was news.
fn mark(spi: &Spi, statement: &str, policy: &str, trouble: Trouble) -> bool {
    spi.run_once("SET LOCAL lock_timeout = '10ms'", &[]);
    let arguments = [(pg_sys::TEXTOID, spi::text(policy)), (pg_sys::TEXTOID, spi::text(trouble.name()))];
    spi.run_once(statement, &arguments).count == 1
}

/// Says that a policy that nobody works on is stopped. It is said by and by that it is not any more.
pub fn tell_stopped(policy: &str, reason: &PgError) {
    let Some(channel) = settings::alert_channel() else { return };
    let mut alarm = Alarm::default();
    alarm.note(Trouble::Stopped, true, Some(&reason.to_string()));
    if let Err(error) = alarm.read(policy).and_then(|()| alarm.tell(&channel, policy)) {
        pgrx::debug1!("pg_expiry: policy \"{policy}\": {error}");
    }
}

/// A row is quarantined, in this very transaction: said of each.
pub fn notify_quarantined(policy: &str, key: &[u8], attempts: u32, error: &PgError) {
    let Some(channel) = settings::alert_channel() else { return };
    let database = database::name(wake::own_database()).unwrap_or_default();
    let (key, reason) = (json::text_of(key), error.to_string());
    let kind = Trouble::Quarantined.name();
    let alert = Alert::new(kind, &database, policy, clock::now().0).because(Some(&reason));
    notify::notify(&channel, &alert.of_row(&key, attempts).payload());
}
