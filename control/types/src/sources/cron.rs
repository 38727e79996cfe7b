//! Cron schedules: `*/5 * * * *`, `0 30 9 * * MON-FRI`, `@hourly`.

use jiff::tz::{Disambiguation, TimeZone};
use jiff::{Timestamp, ToSpan as _, Zoned};

/// Shorthands, with what they stand for.
const NAMED: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];
const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
/// Days that are checked for the next time: the 29th of February comes within eight years, even about 2100.
const DAYS_AHEAD: usize = 8 * 366 + 1;

/// A field: its range, and the names of its numbers.
struct CronField {
    name: &'static str,
    first: u32,
    last: u32,
    names: &'static [&'static str],
}

const FIELDS: [CronField; 6] = [
    CronField { name: "second", first: 0, last: 59, names: &[] },
    CronField { name: "minute", first: 0, last: 59, names: &[] },
    CronField { name: "hour", first: 0, last: 23, names: &[] },
    CronField { name: "day of the month", first: 1, last: 31, names: &[] },
    CronField { name: "month", first: 1, last: 12, names: &MONTHS },
    // 7 is Sunday, too.
    CronField { name: "day of the week", first: 0, last: 7, names: &DAYS },
];

/// A cron schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronSchedule {
    /// One bit for each number, by field.
    fields: [u64; 6],
    /// Both days are restricted: then one of them is enough, as in every crontab.
    match_either_day: bool,
}

impl CronSchedule {
    /// # Errors
    /// The problem with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let text = match NAMED.iter().find(|(name, _)| *name == text) {
            Some((_, meant)) => meant,
            None if text.starts_with('@') => return Err(format!("{text:?} is not known here")),
            None => text,
        };
        let mut parts: Vec<&str> = text.split_whitespace().collect();
        if parts.len() == 5 {
            parts.insert(0, "0");
        }
        let parts: [&str; 6] = parts
            .try_into()
            .map_err(|parts: Vec<&str>| format!("expected 5 fields, or 6 with seconds, and found {}", parts.len()))?;
        let mut fields = [0; 6];
        for ((bits, part), field) in fields.iter_mut().zip(parts).zip(&FIELDS) {
            *bits = field.parse(part).map_err(|why| format!("{}: {why}", field.name))?;
        }
        fields[5] |= (fields[5] >> 7) & 1;
        let open = |part: &str| part.starts_with(['*', '?']);
        let either_day = !open(parts[3]) && !open(parts[5]);
        Ok(Self { fields, match_either_day: either_day })
    }

    /// The first time after `after`, in the time zone `zone`, if there is one.
    #[must_use]
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut day = after.to_zoned(zone.clone());
        for _ in 0..DAYS_AHEAD {
            if self.day_matches(&day)
                && let Some(found) = self.next_in(&day, after)
            {
                return Some(found);
            }
            day = day.start_of_day().ok()?.checked_add(1.day()).ok()?;
        }
        None
    }

    fn field_matches(&self, field: usize, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.fields[field] & (1 << number) != 0)
    }

    fn day_matches(&self, day: &Zoned) -> bool {
        let (of_month, of_week) =
            (self.field_matches(3, day.day()), self.field_matches(5, day.weekday().to_sunday_zero_offset()));
        let day_fits = if self.match_either_day { of_month || of_week } else { of_month && of_week };
        self.field_matches(4, day.month()) && day_fits
    }

    /// The first time of this day after `after`. A time that the clock skips on that day does not occur, and one that it shows
    /// twice occurs twice.
    fn next_in(&self, day: &Zoned, after: Timestamp) -> Option<Timestamp> {
        let meanings = [Disambiguation::Earlier, Disambiguation::Later];
        meanings.into_iter().filter_map(|meaning| self.next_of(day, after, meaning)).min()
    }

    /// The same, where the clock's times are meant so if it shows them twice.
    fn next_of(&self, day: &Zoned, after: Timestamp, meaning: Disambiguation) -> Option<Timestamp> {
        // The day that is checked first has begun.
        for hour in (day.hour()..24).filter(|hour| self.field_matches(2, *hour)) {
            for minute in (0..60).filter(|minute| self.field_matches(1, *minute)) {
                for second in (0..60).filter(|second| self.field_matches(0, *second)) {
                    let shown = day.date().at(hour, minute, second, 0);
                    let time = day.time_zone().to_ambiguous_zoned(shown).disambiguate(meaning).ok()?;
                    let is_it = (time.hour(), time.minute()) == (hour, minute);
                    if is_it && time.timestamp() > after {
                        return Some(time.timestamp());
                    }
                }
            }
        }
        None
    }
}

impl CronField {
    fn parse(&self, text: &str) -> Result<u64, String> {
        let mut bits = 0;
        for part in text.split(',') {
            let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
            let step: u32 = match step {
                None => 1,
                Some(step) => step.parse().ok().filter(|step| *step > 0).ok_or_else(|| format!("no step: {step:?}"))?,
            };
            let (first, last) = match range.split_once('-') {
                _ if range == "*" || range == "?" => {
                    (self.first, self.last.min(if self.first == 0 && self.last == 7 { 6 } else { self.last }))
                }
                Some((first, last)) => (self.number(first)?, self.number(last)?),
                None => {
                    let first = self.number(range)?;
                    (first, if part.contains('/') { self.last } else { first })
                }
            };
            if first > last {
                return Err(format!("{range:?} ends before it begins"));
            }
            for number in (first..=last).step_by(step as usize) {
                bits |= 1 << number;
            }
        }
        Ok(bits)
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        let upper = text.to_ascii_uppercase();
        if let Some(place) = self.names.iter().position(|name| *name == upper) {
            return Ok(self.first + u32::try_from(place).unwrap_or(0));
        }
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number: Option<u32> = if digits { text.parse().ok() } else { None };
        number
            .filter(|number| (self.first..=self.last).contains(number))
            .ok_or_else(|| format!("{text:?} is not between {} and {}", self.first, self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str, zone: &str) -> Option<String> {
        let zone = TimeZone::get(zone).unwrap();
        let found = CronSchedule::parse(schedule).unwrap().next(after.parse().unwrap(), &zone)?;
        Some(found.to_string())
    }

    #[test]
    fn the_next_time_is_the_one_that_a_crontab_means() {
        for (schedule, after, zone, wanted) in [
            ("* * * * *", "2026-01-01T00:00:00Z", "UTC", "2026-01-01T00:01:00Z"),
            ("*/5 * * * *", "2026-01-01T00:03:10Z", "UTC", "2026-01-01T00:05:00Z"),
            ("*/10 * * * * *", "2026-01-01T00:03:10Z", "UTC", "2026-01-01T00:03:20Z"),
            ("30 9 * * MON-FRI", "2026-01-02T10:00:00Z", "UTC", "2026-01-05T09:30:00Z"),
            ("0 0 13 * 5", "2026-01-10T00:00:00Z", "UTC", "2026-01-13T00:00:00Z"),
            ("0 0 1 * 5", "2026-01-10T00:00:00Z", "UTC", "2026-01-16T00:00:00Z"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "UTC", "2028-02-29T00:00:00Z"),
            ("@hourly", "2026-01-01T23:30:00Z", "UTC", "2026-01-02T00:00:00Z"),
            ("0 12 * * 7", "2026-01-01T00:00:00Z", "UTC", "2026-01-04T12:00:00Z"),
            ("5/20 8 * * *", "2026-01-01T08:05:00Z", "UTC", "2026-01-01T08:25:00Z"),
            ("0 9 * jun *", "2026-01-01T00:00:00Z", "Europe/Berlin", "2026-06-01T07:00:00Z"),
            // The clock goes from 2 to 3: half past two does not come that day.
            ("30 2 * * *", "2026-03-29T00:00:00Z", "Europe/Berlin", "2026-03-30T00:30:00Z"),
            // It shows the hour from 2 to 3 twice: nothing that comes every some minutes leaves one of them out.
            ("*/5 * * * *", "2026-10-25T00:55:00Z", "Europe/Berlin", "2026-10-25T01:00:00Z"),
            ("*/5 * * * *", "2026-10-25T01:00:00Z", "Europe/Berlin", "2026-10-25T01:05:00Z"),
            ("*/5 * * * *", "2026-10-25T00:30:00Z", "Europe/Berlin", "2026-10-25T00:35:00Z"),
            ("*/5 * * * *", "2026-10-25T01:55:00Z", "Europe/Berlin", "2026-10-25T02:00:00Z"),
            ("30 2 * * *", "2026-10-25T00:00:00Z", "Europe/Berlin", "2026-10-25T00:30:00Z"),
            ("30 2 * * *", "2026-10-25T00:30:00Z", "Europe/Berlin", "2026-10-25T01:30:00Z"),
            ("30 2 * * *", "2026-10-25T01:30:00Z", "Europe/Berlin", "2026-10-26T01:30:00Z"),
        ] {
            assert_eq!(next(schedule, after, zone).as_deref(), Some(wanted), "{schedule} {after}");
        }
        assert_eq!(next("0 0 31 2 *", "2026-01-01T00:00:00Z", "UTC"), None);
    }

    #[test]
    fn what_is_no_schedule_says_which_field_is_wrong() {
        for (text, why) in [
            ("", "5 fields"),
            ("* * * *", "5 fields"),
            ("60 * * * *", "minute"),
            ("* 24 * * *", "hour"),
            ("* * 0 * *", "day of the month"),
            ("* * * 13 *", "month"),
            ("* * * * 8", "day of the week"),
            ("*/0 * * * *", "no step"),
            ("5-1 * * * *", "before it begins"),
            ("@every 1m", "not known"),
            ("a * * * *", "minute"),
        ] {
            let found = CronSchedule::parse(text).unwrap_err();
            assert!(found.contains(why), "{text:?}: {found}");
        }
    }
}
