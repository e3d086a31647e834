//! From when to when a certificate is valid: what a new one says, and what one says that is there.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::CertificateParams;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Clocks may be late by so much.
pub(super) const LATE: Duration = Duration::from_secs(3600);

/// A day, in seconds.
const DAY: u64 = 86400;

/// The end of the year 9999, in seconds since 1970: no certificate can name a later time.
const LAST: u64 = 253_402_300_799;

/// From when to when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// From when.
    pub from: SystemTime,
    /// To when.
    pub until: SystemTime,
}

impl Validity {
    /// For so many days from now, and an hour before it, for clocks that are late.
    #[must_use]
    pub fn days(days: u32) -> Validity {
        let now = SystemTime::now();
        Validity {
            from: now - LATE,
            until: now + Duration::from_secs(u64::from(days) * DAY),
        }
    }

    pub(super) fn apply(self, params: &mut CertificateParams) {
        let last = Duration::from_secs(LAST);
        let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + since(self.from).min(last);
        params.not_after = epoch + since(self.until).min(last);
    }
}

/// How many whole days there are until a time; none where that is over.
pub(super) fn days_until(time: SystemTime) -> u64 {
    let left = time.duration_since(SystemTime::now()).unwrap_or_default();
    left.as_secs() / DAY
}

/// Until when a certificate in PEM form is valid, by its own words; `None` where it is none.
pub(super) fn end_of(pem: &str) -> Option<SystemTime> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate, _) = element(&certificate)?;
    let (_, mut rest, _) = element(certificate)?;
    let (tag, _, behind) = element(rest)?;
    if tag == VERSION {
        rest = behind;
    }
    // Its number, how it is signed, and by whom.
    for _ in 0..3 {
        (_, _, rest) = element(rest)?;
    }
    let (_, validity, _) = element(rest)?;
    let (_, _, until) = element(validity)?;
    let (tag, until, _) = element(until)?;
    time(tag, until)
}

const VERSION: u8 = 0xa0;
const SHORT_TIME: u8 = 0x17;
const LONG_TIME: u8 = 0x18;

/// The first element of DER: its tag, what is in it, and what is behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            let bytes = bytes.iter().map(|byte| usize::from(*byte));
            (bytes.fold(0, |length, byte| length << 8 | byte), rest)
        }
        _ => return None,
    };
    let (body, rest) = rest.split_at_checked(length)?;
    Some((tag, body, rest))
}

/// A time in DER: `YYMMDDHHMMSSZ`, or with four digits for the year.
fn time(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let text = str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        SHORT_TIME => text.split_at_checked(2)?,
        LONG_TIME => text.split_at_checked(4)?,
        _ => return None,
    };
    let year: u64 = year.parse().ok()?;
    let year = match tag {
        SHORT_TIME if year < 50 => year + 2000,
        SHORT_TIME => year + 1900,
        _ => year,
    };
    let number = |at: usize| rest.get(at..at + 2)?.parse::<u64>().ok();
    let (month, day) = (number(0)?, number(2)?);
    if rest.len() != 10 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = (number(4)? * 60 + number(6)?) * 60 + number(8)?;
    let seconds = days_before(year, month, day)? * DAY + seconds;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// How many days there are from 1970 to a date in the calendar that is used today.
fn days_before(year: u64, month: u64, day: u64) -> Option<u64> {
    // Years begin with March here, so that the day that some have more is their last.
    let (year, month) = match month {
        ..=2 => (year.checked_sub(1)?, month + 9),
        _ => (year, month - 3),
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    days.checked_sub(719_469)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let read = |tag, text: &str| {
            let time = time(tag, text.as_bytes())?;
            time.duration_since(UNIX_EPOCH)
                .ok()
                .map(|since| since.as_secs())
        };
        assert_eq!(read(SHORT_TIME, "700101000000Z"), Some(0));
        assert_eq!(read(SHORT_TIME, "000229120000Z"), Some(951_825_600));
        assert_eq!(read(SHORT_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(read(LONG_TIME, "20500101000000Z"), Some(2_524_608_000));
        assert_eq!(read(LONG_TIME, "99991231235959Z"), Some(LAST));
        for (tag, text) in [
            (SHORT_TIME, "701301000000Z"),
            (SHORT_TIME, "7001010000Z"),
            (LONG_TIME, "19691231235959Z"),
            (LONG_TIME, "2050010100000é"),
            (0x04, "700101000000Z"),
        ] {
            assert_eq!(read(tag, text), None, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_certificate_is_found() {
        for days in [1, 3650, 36_500, u32::MAX] {
            let mut params = CertificateParams::new(vec!["node-1".to_owned()]).unwrap();
            let validity = Validity::days(days);
            validity.apply(&mut params);
            let key = rcgen::KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            let last = UNIX_EPOCH + Duration::from_secs(LAST);
            let found = end_of(&pem).unwrap();
            let wanted = validity.until.min(last);
            let off = wanted.duration_since(found).unwrap();
            assert!(off < Duration::from_secs(1), "{days}: {off:?}");
        }
        assert_eq!(end_of("no certificate"), None);
    }
}
