//! One step of memory that is taken only if something else still holds: a restartable sequence.
//!
//! Who is about to write to a page that may go away cannot look before it writes: where the page
//! goes in between, the write waits for it, and takes place when it is there again, in another
//! world. The kernel can help. A thread tells it of a few instructions, the last of which is the
//! write (`rseq(2)`). If the thread is interrupted among them, stopped, or made to wait for a page,
//! it does not go on there, but at another place, where it learns that nothing was written. So what
//! it looked at first, among these instructions, holds when it writes.
//!
//! The C library tells the kernel where each thread has the word for that, since glibc 2.35.
//! Where it does not, or on other processors than x86-64, the look and the write are two steps
//! ([`is_there`] says so).

use std::sync::atomic::{AtomicU64, Ordering};

/// What has to be so when a word is changed: a counter has a value.
#[derive(Clone, Copy, Debug)]
pub struct Provided<'a> {
    /// The counter.
    pub counter: &'a AtomicU64,
    /// Its value.
    pub is: u64,
}

impl Provided<'_> {
    /// Whether it is so now.
    #[must_use]
    pub fn holds(self) -> bool {
        self.counter.load(Ordering::SeqCst) == self.is
    }
}

/// What came of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The word was changed, and what had to be so was so.
    Done,
    /// The word was another number.
    Differs,
    /// What had to be so was not. Nothing was changed.
    Refused,
    /// The thread was interrupted, or the memory was not there: nothing was changed. To be tried
    /// again.
    Interrupted,
}

/// Changes a word from one number to another, if it is that and if both counters are as they have
/// to be, all in one step.
#[must_use]
pub fn change(word: &AtomicU64, from: u64, to: u64, provided: [Provided<'_>; 2]) -> Changed {
    #[cfg(target_arch = "x86_64")]
    if let Some(area) = x86::area() {
        return x86::change(area, word, (from, to), provided);
    }
    in_two_steps(word, from, to, provided)
}

fn in_two_steps(word: &AtomicU64, from: u64, to: u64, provided: [Provided<'_>; 2]) -> Changed {
    if !provided.into_iter().all(Provided::holds) {
        return Changed::Refused;
    }
    let order = Ordering::SeqCst;
    match word.compare_exchange(from, to, order, order) {
        Ok(_) => Changed::Done,
        Err(_) => Changed::Differs,
    }
}

/// Whether [`change`] is one step in this thread.
#[must_use]
pub fn is_there() -> bool {
    #[cfg(target_arch = "x86_64")]
    return x86::area().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::ptr::NonNull;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU64;

    use super::{Changed, Provided};
    use crate::arch::thread_pointer;

    /// Where the number of the processor is in it, which is negative where the kernel was not
    /// told of this thread.
    const PROCESSOR: usize = 4;

    /// From a thread's pointer to what the kernel reads of it (`struct rseq`), if the C library has
    /// told the kernel of it.
    fn offset() -> Option<isize> {
        static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
        *OFFSET.get_or_init(|| {
            let find = |name: &std::ffi::CStr| {
                // SAFETY: it only looks a name up.
                let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
                (!found.is_null()).then_some(found)
            };
            let size = find(c"__rseq_size")?.cast::<u32>();
            let offset = find(c"__rseq_offset")?.cast::<isize>();
            // SAFETY: the C library has these variables under these names, of these types, and does
            // not write to them after the program's start.
            let (size, offset) = unsafe { (size.read(), offset.read()) };
            (size > 0).then_some(offset)
        })
    }

    /// What the kernel reads of this thread, if it was told where that is.
    pub fn area() -> Option<NonNull<u8>> {
        let area = NonNull::new(thread_pointer().as_ptr().wrapping_offset(offset()?))?;
        // SAFETY: the C library has room for it there in each thread.
        let processor = unsafe { area.byte_add(PROCESSOR).cast::<i32>().read_volatile() };
        (processor >= 0).then_some(area)
    }

    pub fn change(
        area: NonNull<u8>,
        word: &AtomicU64,
        (from, to): (u64, u64),
        [first, second]: [Provided<'_>; 2],
    ) -> Changed {
        let outcome: u64;
        // SAFETY: it reads two counters and changes a word, all of which are borrowed, by one
        // instruction that is atomic. `area` is this thread's own, in which the eight bytes at 8
        // say which instructions are not to be gone on with (`2`: from `3`, to `4`, or else at
        // `5`). The kernel looks at them when it interrupts the thread, and has left all registers as
        // they were when it goes on at `5`, before which it wants to see four bytes that are the
        // signature that the C library has named. They are set to zero at the end in any case, so no
        // other instructions are concerned. The description's memory is there as long as the code.
        unsafe {
            asm!(
                ".pushsection __rseq_cs, \"aw\", @progbits",
                ".balign 32",
                "2:",
                ".long 0, 0",
                ".quad 3f, 4f - 3f, 5f",
                ".popsection",
                "lea {outcome}, [rip + 2b]",
                "mov qword ptr [{area} + 8], {outcome}",
                "3:",
                "cmp qword ptr [{first}], {first_is}",
                "jne 6f",
                "cmp qword ptr [{second}], {second_is}",
                "jne 6f",
                "lock cmpxchg qword ptr [{word}], {to}",
                "4:",
                "mov {outcome:e}, 0",
                "je 7f",
                "mov {outcome:e}, 1",
                "jmp 7f",
                // Never gone to but by the kernel: an instruction that is none.
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "5:",
                "mov {outcome:e}, 3",
                "jmp 7f",
                "6:",
                "mov {outcome:e}, 2",
                "7:",
                "mov qword ptr [{area} + 8], 0",
                outcome = out(reg) outcome,
                area = in(reg) area.as_ptr(),
                first = in(reg) first.counter.as_ptr(),
                first_is = in(reg) first.is,
                second = in(reg) second.counter.as_ptr(),
                second_is = in(reg) second.is,
                word = in(reg) word.as_ptr(),
                to = in(reg) to,
                inout("rax") from => _,
                options(nostack),
            );
        }
        match outcome {
            0 => Changed::Done,
            1 => Changed::Differs,
            2 => Changed::Refused,
            _ => Changed::Interrupted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_changed_if_all_is_as_it_has_to_be() {
        let counters = [AtomicU64::new(3), AtomicU64::new(u64::MAX)];
        let provided = |first, second| {
            [
                Provided {
                    counter: &counters[0],
                    is: first,
                },
                Provided {
                    counter: &counters[1],
                    is: second,
                },
            ]
        };
        for change in [change, in_two_steps] {
            let word = AtomicU64::new(5);
            let settled = |from, to, provided| {
                // It may be interrupted at any time.
                (0..1000)
                    .map(|_| change(&word, from, to, provided))
                    .find(|it| *it != Changed::Interrupted)
            };
            let all = provided(3, u64::MAX);
            assert_eq!(settled(5, 6, provided(4, u64::MAX)), Some(Changed::Refused));
            assert_eq!(settled(5, 6, provided(3, 0)), Some(Changed::Refused));
            assert_eq!(settled(4, 6, all), Some(Changed::Differs));
            assert_eq!(word.load(Ordering::SeqCst), 5);
            assert_eq!(settled(5, u64::MAX, all), Some(Changed::Done));
            assert_eq!(settled(u64::MAX, 1 << 40, all), Some(Changed::Done));
            assert_eq!(word.load(Ordering::SeqCst), 1 << 40);
        }
    }

    #[test]
    fn threads_count_together() {
        let (word, sure) = (AtomicU64::new(0), AtomicU64::new(0));
        let provided = [Provided {
            counter: &sure,
            is: 0,
        }; 2];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut done = 0;
                    while done < 100_000 {
                        let from = word.load(Ordering::SeqCst);
                        let changed = change(&word, from, from + 1, provided);
                        assert_ne!(changed, Changed::Refused);
                        done += u32::from(changed == Changed::Done);
                    }
                });
            }
        });
        assert_eq!(word.load(Ordering::SeqCst), 400_000);
    }
}
