//! Points in time, as RFC 3339 writes them.

use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

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

fn parse(s: &[u8]) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        s.get(range)?
            .iter()
            .try_fold(0, |n, b| b.is_ascii_digit().then(|| n * 10 + i64::from(b - b'0')))
    };
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if separators.iter().any(|&(i, c)| s.get(i) != Some(&c)) || !matches!(s[10], b'T' | b't') {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    };
    if !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut zone = &s[19..];
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
            let (hours, minutes) = (number(at..at + 2)?, number(at + 3..at + 5)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'+' { 60 } else { -60 }
        }
        _ => return None,
    };
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(seconds - offset)
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar, counting years from March so that the
/// leap day comes last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day_of_year - (153 * march_month + 2) / 5 + 1)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_from_days(self.0.div_euclid(86_400));
        let second = self.0.rem_euclid(86_400);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
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
