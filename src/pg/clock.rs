//! Time, as PostgreSQL counts it. Time enters the project here and nowhere else.

use pgrx::pg_sys;

/// Microseconds since 2000-01-01 00:00 UTC, as in `timestamptz`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl Timestamp {
    pub const NEGATIVE_INFINITY: Self = Self(i64::MIN);
    pub const INFINITY: Self = Self(i64::MAX);

    pub fn is_finite(self) -> bool {
        self != Self::NEGATIVE_INFINITY && self != Self::INFINITY
    }

    /// Microseconds from `earlier` to `self`; saturates at the infinities.
    pub fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    pub fn plus_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    pub fn datum(self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.0)
    }
}

impl std::fmt::Display for Timestamp {
    /// As the session shows a timestamptz; inside a transaction only.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: timestamptz_out takes any timestamptz and returns a palloc'd C string.
        let text =
            unsafe { std::ffi::CStr::from_ptr(pg_sys::OidOutputFunctionCall(TIMESTAMPTZ_OUT, self.datum())) };
        f.write_str(&text.to_string_lossy())
    }
}

/// `timestamptz_out` of pg_proc.dat.
const TIMESTAMPTZ_OUT: pg_sys::Oid = pg_sys::Oid::from_u32(1151);

/// The wall clock.
pub fn now() -> Timestamp {
    // SAFETY: reads the clock; cannot raise.
    Timestamp(unsafe { pg_sys::GetCurrentTimestamp() })
}
