//! Whether the machine was asleep (suspended), and for how long.
//!
//! The clock by which leases are counted stands still meanwhile, and that of other machines does
//! not: who wakes would take his lease for one that runs on, while others have long had his pages.
//! So each turn of the loop compares that clock with one that counts sleep as well, before it hands
//! out anything. The kernel wakes the loop for it ([`Alarm`]): how long a poll waits is counted by a
//! clock that stood still, too.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// Less than this is no sleep.
const LEAST: Duration = Duration::from_millis(20);

/// So often both clocks are looked at once more where one is ahead.
const LOOKS: usize = 3;

/// For how long the machine has been there, with the time in which it was asleep.
#[must_use]
pub(super) fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// What one clock has counted more than the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asleep {
    /// Where both are counted from.
    from: (Instant, Duration),
    /// For how long the machine was asleep since then.
    known: Duration,
}

impl Asleep {
    pub(super) const fn new(awake: Instant, all: Duration) -> Asleep {
        Asleep {
            from: (awake, all),
            known: Duration::ZERO,
        }
    }

    /// For how long the machine was asleep since the last look, if it was. `seen` is what both
    /// clocks said, the one that counts sleep last, and `look` asks them.
    ///
    /// Whoever looks may lose the processor between the two, which counts like sleep. It does not
    /// happen each time, and what is least is nearest to the truth.
    pub(super) fn look(
        &mut self,
        seen: (Instant, Duration),
        mut look: impl FnMut() -> (Instant, Duration),
    ) -> Option<Duration> {
        let least = self.known + LEAST;
        let mut ahead = self.ahead(seen);
        for _ in 0..LOOKS {
            if ahead < least {
                return None;
            }
            ahead = ahead.min(self.ahead(look()));
        }
        if ahead < least {
            return None;
        }
        let before = std::mem::replace(&mut self.known, ahead);
        Some(ahead - before)
    }

    fn ahead(&self, (awake, all): (Instant, Duration)) -> Duration {
        let awake = awake.saturating_duration_since(self.from.0);
        all.saturating_sub(self.from.1).saturating_sub(awake)
    }
}

/// A descriptor that becomes ready when the machine wakes, or its clock is set.
#[derive(Debug)]
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    /// An alarm that a poll looks at.
    pub(super) fn new(registry: &Registry, token: Token) -> io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let alarm = Alarm(timerfd_create(TimerfdClockId::Realtime, flags)?);
        alarm.arm()?;
        registry.register(
            &mut SourceFd(&alarm.0.as_raw_fd()),
            token,
            Interest::READABLE,
        )?;
        Ok(alarm)
    }

    /// Has it become ready the next time. The moment that it is set for never comes; it is ready when
    /// the clock jumps, as it does when a machine wakes (`timerfd_create(2)`,
    /// `TFD_TIMER_CANCEL_ON_SET`).
    fn arm(&self) -> io::Result<()> {
        let never = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::MAX / 2_000_000_000,
                tv_nsec: 0,
            },
        };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&self.0, flags, &never)?;
        Ok(())
    }

    /// It was ready. It is to be heard again, if the system allows that still.
    pub(super) fn heard(self) -> Option<Alarm> {
        // What is read is that it was cancelled, which is known.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
        self.arm().is_ok().then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_one_clock_has_counted_was_sleep() {
        let ms = Duration::from_millis;
        let begin = Instant::now();
        let mut asleep = Asleep::new(begin, ms(50_000));
        let mut look = |awake, all| {
            asleep.look((begin + ms(awake), ms(all)), || {
                (begin + ms(awake), ms(all))
            })
        };
        assert_eq!(look(700, 50_701), None);
        assert_eq!(look(710, 53_711), Some(ms(3001)));
        assert_eq!(look(720, 53_721), None, "only once");
        assert_eq!(look(790, 53_801), None, "little");
        assert_eq!(look(800, 53_911), Some(ms(110)));
    }

    #[test]
    fn who_loses_the_processor_between_the_looks_was_not_asleep() {
        let ms = Duration::from_millis;
        let begin = Instant::now();
        let mut asleep = Asleep::new(begin, ms(0));
        // Twice, and then not.
        let mut late = [300, 0, 40].into_iter();
        let next = || (begin + ms(11), ms(11 + late.next().unwrap_or(0)));
        assert_eq!(asleep.look((begin + ms(10), ms(110)), next), None);
        let next = || (begin + ms(20), ms(60));
        let slept = asleep.look((begin + ms(20), ms(90)), next);
        assert_eq!(slept, Some(ms(40)), "what is least counts");
    }

    #[test]
    fn nothing_is_heard_as_long_as_the_clock_does_not_jump() {
        let mut poll = mio::Poll::new().expect("a poll");
        let mut events = mio::Events::with_capacity(1);
        let mut alarm = Alarm::new(poll.registry(), Token(7)).expect("the kernel has it");
        for _ in 0..2 {
            let looked = poll.poll(&mut events, Some(Duration::from_millis(20)));
            assert!(looked.is_ok() && events.is_empty());
            alarm = alarm.heard().expect("it is armed again");
        }
    }

    #[test]
    fn the_clocks_of_this_machine_run_together() {
        let both = || (Instant::now(), since_boot());
        let (awake, all) = both();
        let mut asleep = Asleep::new(awake, all);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(asleep.look(both(), both), None);
    }
}
