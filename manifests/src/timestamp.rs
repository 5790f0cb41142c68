//! Points in time, as RFC 3339 writes them.

use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;
use time::{Date, Month, OffsetDateTime, Time};

/// A point in time to the second, years 0000 to 9999.
///
/// Reads any RFC 3339 date-time (a fraction of a second is checked and dropped; leap seconds are
/// refused), writes UTC with `Z`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

/// The text is no RFC 3339 date-time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write the time as RFC 3339 has it, such as 2026-11-20T00:00:00Z")]
pub struct ParseTimestampError;

const MIN: i64 = -62_167_219_200;
const MAX: i64 = 253_402_300_799;

impl Timestamp {
    /// The time that many seconds after 1970-01-01T00:00:00Z, or `None` outside of years 0000 to
    /// 9999.
    pub fn from_unix(seconds: i64) -> Option<Timestamp> {
        (MIN..=MAX).contains(&seconds).then_some(Timestamp(seconds))
    }

    /// Seconds since 1970-01-01T00:00:00Z.
    pub const fn unix(self) -> i64 {
        self.0
    }
}

impl From<SystemTime> for Timestamp {
    /// Whole seconds, clamped to years 0000 to 9999.
    fn from(time: SystemTime) -> Timestamp {
        let seconds = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_secs()).unwrap_or(MAX),
            Err(before) => i64::try_from(before.duration().as_secs()).map_or(MIN, |s| -s),
        };
        Timestamp(seconds.clamp(MIN, MAX))
    }
}

impl FromStr for Timestamp {
    type Err = ParseTimestampError;

    fn from_str(s: &str) -> Result<Self, ParseTimestampError> {
        parse(s.as_bytes()).and_then(Timestamp::from_unix).ok_or(ParseTimestampError)
    }
}

/// By hand where the format is, so that one spelling is read and no leap second; the calendar is the
/// library's.
fn parse(s: &[u8]) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| -> Option<u16> {
        s.get(range)?
            .iter()
            .try_fold(0, |n, b| b.is_ascii_digit().then(|| n * 10 + u16::from(b - b'0')))
    };
    let small = |at: usize| number(at..at + 2).map(|n| n as u8);
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if separators.iter().any(|&(i, c)| s.get(i) != Some(&c)) || !matches!(s[10], b'T' | b't') {
        return None;
    }
    let month = Month::try_from(small(5)?).ok()?;
    let date = Date::from_calendar_date(number(0..4)?.into(), month, small(8)?).ok()?;
    let time = Time::from_hms(small(11)?, small(14)?, small(17)?).ok()?;
    let mut zone = s.get(19..)?;
    if let Some(fraction) = zone.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|b| b.is_ascii_digit()).count();
        if !(1..=9).contains(&digits) {
            return None;
        }
        zone = &fraction[digits..];
    }
    let offset = match zone {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), rest @ ..] if rest.len() == 5 && rest[2] == b':' => {
            let at = s.len() - 5;
            let (hours, minutes) = (small(at)?, small(at + 3)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (i64::from(hours) * 60 + i64::from(minutes)) * if *sign == b'+' { 60 } else { -60 }
        }
        _ => return None,
    };
    Some(date.with_time(time).assume_utc().unix_timestamp() - offset)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A Timestamp is within years 0000 to 9999, which the library has.
        let time = OffsetDateTime::from_unix_timestamp(self.0).map_err(|_| fmt::Error)?;
        let (year, month, day) = time.to_calendar_date();
        let (hour, minute, second) = time.to_hms();
        let month = u8::from(month);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_have_known_seconds() {
        let unix = |s: &str| s.parse::<Timestamp>().map(Timestamp::unix);
        assert_eq!(unix("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(unix("2000-02-29T12:34:56Z"), Ok(951_827_696));
        assert_eq!(unix("2026-11-20T00:00:00+02:00"), Ok(1_795_132_800 - 7200));
        assert_eq!(unix("1969-12-31T23:59:59.999Z"), Ok(-1));
        assert_eq!(unix("9999-12-31T23:59:59Z"), Ok(MAX));
        assert_eq!(unix("0000-01-01T00:00:00Z"), Ok(MIN));
    }

    #[test]
    fn every_day_of_1860_to_2134_round_trips() {
        for day in -40_176..60_265 {
            let time = Timestamp::from_unix(day * 86_400 + 86_399).unwrap();
            assert_eq!(time.to_string().parse(), Ok(time));
        }
    }

    #[test]
    fn what_rfc_3339_does_not_allow_is_refused() {
        for bad in [
            "",
            "2026-11-20",
            "2026-11-20 00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-20T24:00:00Z",
            "2026-11-20T00:00:60Z",
            "2026-11-20T00:00:00",
            "2026-11-20T00:00:00.Z",
            "2026-11-20T00:00:00+2:00",
            "2026-11-20T00:00:00+24:00",
            "+026-11-20T00:00:00Z",
            "2026-11-20T00:00:00Z ",
            "9999-12-31T23:59:59-01:00",
            "2026-11-20T00:00:0",
            "２０26-11-20T00:00:00Z",
        ] {
            assert_eq!(bad.parse::<Timestamp>(), Err(ParseTimestampError), "{bad}");
        }
    }
}
