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

/// What is less may come from between the looks at the two clocks.
const LEAST: Duration = Duration::from_millis(20);

/// For how long the machine has been there, with the time in which it was asleep.
#[must_use]
pub(super) fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// Both clocks, when they were looked at last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asleep {
    awake: Instant,
    all: Duration,
}

impl Asleep {
    pub(super) const fn new(awake: Instant, all: Duration) -> Asleep {
        Asleep { awake, all }
    }

    /// For how long the machine was asleep since the last look, if it was.
    pub(super) fn look(&mut self, awake: Instant, all: Duration) -> Option<Duration> {
        let before = std::mem::replace(self, Asleep { awake, all });
        let awake = awake.saturating_duration_since(before.awake);
        let asleep = all.saturating_sub(before.all).saturating_sub(awake);
        (asleep >= LEAST).then_some(asleep)
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
        assert_eq!(asleep.look(begin + ms(700), ms(50_701)), None);
        assert_eq!(asleep.look(begin + ms(710), ms(53_711)), Some(ms(3000)));
        assert_eq!(asleep.look(begin + ms(720), ms(53_721)), None, "only once");
        assert_eq!(asleep.look(begin + ms(790), ms(53_751)), None, "jitter");
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
        let mut asleep = Asleep::new(Instant::now(), since_boot());
        std::thread::sleep(Duration::from_millis(30));
        let look = asleep.look(Instant::now(), since_boot());
        assert_eq!(look, None);
    }
}
