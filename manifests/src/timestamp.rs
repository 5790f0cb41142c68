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

/// Seconds of a day.
const DAY: i64 = 86_400;
/// Days of 400 years.
const ERA: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: i64 = 719_468;

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

/// By hand, so that one spelling is read and no leap second.
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
    let date = (number(0..4)?.into(), small(5)?, small(8)?);
    let day = day_of(date);
    // What is no date is counted on into another one.
    if date_of(day) != date {
        return None;
    }
    let (hour, minute, second) = (small(11)?, small(14)?, small(17)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let time = (i64::from(hour) * 60 + i64::from(minute)) * 60 + i64::from(second);
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
    Some(day * DAY + time - offset)
}

/// The number of a day of the Gregorian calendar (year, month, day of the month), from 1970-01-01 on.
///
/// This and [`date_of`] are `days_from_civil` and `civil_from_days` of Howard Hinnant's "chrono-compatible
/// low-level date algorithms". They count in eras of 400 years, after which the calendar repeats, and in years
/// that begin in March, so that the leap day is the last of a year.
fn day_of((year, month, day): (i64, u8, u8)) -> i64 {
    let (month, day) = (i64::from(month), i64::from(day));
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year * 365 + year / 4 - year / 100 + day_of_year;
    era * ERA + day_of_era - EPOCH
}

/// The date of such a number.
fn date_of(day: i64) -> (i64, u8, u8) {
    let (era, day_of_era) = ((day + EPOCH).div_euclid(ERA), (day + EPOCH).rem_euclid(ERA));
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (era * 400 + year, month as u8, day as u8)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_of(self.0.div_euclid(DAY));
        let second = self.0.rem_euclid(DAY);
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
    fn every_day_has_the_date_that_counting_gives() {
        let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let mut day = MIN / DAY;
        for year in 0..=9999 {
            let february = if leap(year) { 29 } else { 28 };
            let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            for (month, days) in (1..).zip(months) {
                for date in (1..=days).map(|of_month| (year, month, of_month)) {
                    assert_eq!((day_of(date), date_of(day)), (day, date));
                    day += 1;
                }
                let none = format!("{year:04}-{month:02}-{:02}T00:00:00Z", days + 1);
                assert_eq!(none.parse::<Timestamp>(), Err(ParseTimestampError));
            }
        }
        assert_eq!(day * DAY - 1, MAX);
    }

    #[test]
    fn every_day_of_1860_to_2134_round_trips() {
        for day in -40_176..60_265 {
            let time = Timestamp::from_unix(day * DAY + DAY - 1).unwrap();
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
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-11-20T00:60:00Z",
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
