//! Work that splits into independent pieces.

use std::sync::Mutex;

/// Does `work` on each item, on `threads` threads (0 for one a processor), and returns the results in the order of the items.
pub(crate) fn in_chunks<T: Send, R: Send>(
    items: Vec<T>,
    threads: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    if threads.min(items.len()) <= 1 {
        return items.into_iter().map(work).collect();
    }
    let count = items.len();
    let queue = Mutex::new(items.into_iter().enumerate());
    let next = || queue.lock().ok()?.next();
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let run = || {
            let mut done = Vec::new();
            while let Some((i, item)) = next() {
                done.push((i, work(item)));
            }
            done
        };
        let others: Vec<_> = (1..threads.min(count)).map(|_| scope.spawn(run)).collect();
        let mut done = run();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::in_chunks;

    #[test]
    fn results_keep_their_order() {
        for threads in [0, 1, 3, 100] {
            assert_eq!(
                in_chunks((0..57).collect(), threads, |i: i32| i * i),
                (0..57).map(|i| i * i).collect::<Vec<_>>()
            );
        }
        assert_eq!(in_chunks(Vec::<u8>::new(), 4, |i| i), []);
    }
}
