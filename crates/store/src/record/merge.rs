//! Units of all threads in the order of their numbers.

use super::{BUFFERS, Place, Record, Unit, order};
use crate::aof::write::Effect;
use crate::loading::Behind;

/// What the thread that takes units knows of them.
pub(crate) struct Merger(order::Merger<Unit>);

/// Units in their places: one, or a run of units that have a command each.
pub(crate) struct Taken<'m> {
    /// Effects of several units.
    all: &'m Unit,
    passed: order::Passed,
}

impl Merger {
    /// Returns a merger of the units from a number on.
    pub(crate) fn new(next: u64) -> Merger {
        Merger(order::Merger::new(BUFFERS, next))
    }

    /// Returns the number of the next unit.
    pub(crate) fn next_number(&self) -> u64 {
        self.0.next_number()
    }

    /// Takes the units that are in the buffers now. Returns the number up to which they may be passed on.
    pub(crate) fn take(&mut self, record: &Record) -> u64 {
        let until = self.0.take(&record.order);
        record.loading.release_writes(Behind::AppendOnly);
        until
    }

    /// Calls `use_units` with the next unit, or several, if it was taken and its number is at most `until`. Returns whether
    /// it was.
    pub(crate) fn pass(&mut self, until: u64, use_units: impl FnOnce(Taken<'_>)) -> bool {
        self.0.pass(until, |all, passed| use_units(Taken { all, passed }))
    }
}

impl<'m> Taken<'m> {
    /// Returns the effects of a unit, or one that has the commands of all units of a run.
    pub(crate) fn effects(&self) -> impl ExactSizeIterator<Item = Effect<'m>> {
        let Unit { effects, bytes, long, .. } = self.all;
        let part = self.passed.part.clone();
        let before = |index: usize| index.checked_sub(1).map(|index| effects[index]);
        self.passed.effects.clone().map(move |index| {
            let Place { database, is_passing, bytes_end, long_end, .. } = effects[index];
            let (start, long_start) = before(index).map_or((0, 0), |place| (place.bytes_end, place.long_end));
            let (mut command, long) = (&bytes[start..bytes_end], &long[long_start..long_end]);
            if let Some(part) = &part {
                command = &command[part.start..part.end.min(command.len())];
            }
            Effect { database, is_passing, command, start, long }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::aof::write::encoded_len;

    fn commands(mut run: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while !run.is_empty() {
            let (command, rest) = run.split_at(encoded_len(run));
            all.push(command.to_vec());
            run = rest;
        }
        all
    }

    /// Units that threads put at the same time come out in the order of their numbers, each whole; and the units of a
    /// thread in its order.
    #[test]
    fn units_come_in_order_and_whole() {
        const THREADS: u64 = 6;
        const UNITS: u64 = 3_000;
        let record = Record::new(Arc::default());
        let (mut merger, mut seen, mut log) = (Merger::new(2), vec![0; THREADS as usize], Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let record = &record;
                scope.spawn(move || {
                    for number in 0..UNITS {
                        record.put(|unit| {
                            for part in 0..=number % 3 {
                                let words = [thread, number, part].map(|word| word.to_string().into_bytes());
                                let long = Arc::new(vec![b'x'; if number % 7 == 0 { 5_000 } else { 3 }]);
                                let words = words.iter().map(|word| super::super::Word::Bytes(word));
                                let all: Vec<_> = words.chain([super::super::Word::Shared(&long)]).collect();
                                unit.add_words(part as u32, all.into_iter());
                            }
                        });
                    }
                });
            }
            while merger.next_number() <= THREADS * UNITS + 1 {
                merger.take(&record);
                while merger.pass(u64::MAX, |unit| {
                    log.push(
                        unit.effects()
                            .map(|effect| {
                                let mut bytes = Vec::new();
                                effect.write(&mut bytes);
                                (effect.database, bytes)
                            })
                            .collect::<Vec<_>>(),
                    );
                }) {}
            }
        });
        // Runs have a command a unit.
        let is_run = |unit: &Vec<(u32, Vec<u8>)>| unit.len() == 1 && encoded_len(&unit[0].1) < unit[0].1.len();
        let parted = |unit: Vec<(u32, Vec<u8>)>| match is_run(&unit) {
            false => vec![unit],
            true => commands(&unit[0].1).into_iter().map(|command| vec![(unit[0].0, command)]).collect(),
        };
        let log: Vec<_> = log.into_iter().flat_map(parted).collect();
        assert_eq!((log.len() as u64, record.waiting(), record.last()), (THREADS * UNITS, 0, THREADS * UNITS + 1));
        for unit in log {
            let text = String::from_utf8(unit[0].1.clone()).expect("text");
            let words: Vec<&str> = text.split("\r\n").collect();
            let (thread, number): (usize, u64) = (words[2].parse().expect("a number"), words[4].parse().expect("one"));
            assert_eq!(number, std::mem::replace(&mut seen[thread], number + 1));
            assert_eq!(unit.len() as u64, number % 3 + 1);
            let len = if number % 7 == 0 { 5_000 } else { 3 };
            for (part, (database, bytes)) in unit.iter().enumerate() {
                assert_eq!(*database, part as u32);
                let long = "x".repeat(len);
                let mut expected = Vec::new();
                let [thread, number, part] = [thread as u64, number, part as u64].map(|word| word.to_string());
                let words = [thread.as_bytes(), number.as_bytes(), part.as_bytes(), long.as_bytes()];
                crate::aof::write::encode(words.into_iter(), &mut expected);
                assert!(*bytes == expected);
            }
        }
    }

    /// A unit whose effects cannot be added to the end is not there, and not part of the next one.
    #[test]
    fn a_panic_leaves_no_part_of_a_unit() {
        let record = Record::new(Arc::default());
        let long = Arc::new(vec![b'x'; 5_000]);
        let put = |record: &Record, panics: bool| {
            record.put(|unit| {
                unit.add(1, &[b"PING"]);
                let words = [super::super::Word::Bytes(b"ECHO"), super::super::Word::Shared(&long)];
                unit.add_words(2, words.into_iter());
                if panics {
                    std::panic::resume_unwind(Box::new(()));
                }
            });
        };
        put(&record, false);
        let waiting = record.waiting();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| put(&record, true))).is_err());
        put(&record, false);
        assert_eq!(record.waiting(), 2 * waiting);
        let (mut merger, mut found) = (Merger::new(2), Vec::new());
        merger.take(&record);
        while merger.pass(u64::MAX, |unit| {
            let databases: Vec<u32> = unit.effects().map(|effect| effect.database).collect();
            let mut bytes = Vec::new();
            unit.effects().for_each(|effect| effect.write(&mut bytes));
            found.push((databases, bytes.len() as u64));
        }) {}
        assert_eq!(found, vec![(vec![1, 2], waiting); 2]);
        assert_eq!(record.waiting(), 0);
    }

    #[test]
    fn a_limit_holds_units_back() {
        let record = Record::new(Arc::default());
        (0..3).for_each(|_| record.put(|unit| unit.add(0, &[b"PING"])));
        let mut merger = Merger::new(2);
        merger.take(&record);
        let bytes = |units: Taken<'_>| units.effects().map(|effect| effect.command.len()).sum::<usize>();
        let len = b"*1\r\n$4\r\nPING\r\n".len();
        assert!(merger.pass(2, |units| assert_eq!(bytes(units), len)) && !merger.pass(2, |_| {}));
        assert!(merger.pass(4, |units| assert_eq!(bytes(units), 2 * len)));
        assert_eq!(merger.next_number(), 5);
    }

    /// Units of the same form that follow each other are one, as far as no other one comes in between and they are not too
    /// many.
    #[test]
    fn runs_are_passed_on_at_once() {
        let record = Record::new(Arc::default());
        let long = Arc::new(vec![b'x'; 5_000]);
        let ping: &dyn Fn(&mut Unit) = &|unit| unit.add(0, &[b"PING"]);
        let puts: [&dyn Fn(&mut Unit); 14] = [
            ping,
            &|unit| unit.add_encoded(0, b"*1\r\n$4\r\nPING\r\n"),
            ping,
            &|unit| (0..2).for_each(|_| ping(unit)),
            ping,
            &|unit| unit.add(1, &[b"PING"]),
            &|unit| unit.annotate(1, &[b"PING"]),
            &|unit| unit.add_passing(&[b"PING"]),
            ping,
            ping,
            &|unit| unit.add_words(0, [super::super::Word::Shared(&long)].into_iter()),
            ping,
            &|unit| unit.add(0, &[&vec![b'x'; super::super::RUN_BYTES][..]]),
            ping,
        ];
        puts.iter().for_each(|put| record.put(|unit| put(unit)));
        let (mut merger, mut seen, mut before) = (Merger::new(2), Vec::new(), 1);
        merger.take(&record);
        while merger.pass(u64::MAX, |units| seen.push((units.effects().len(), 0))) {
            let last = merger.next_number() - 1;
            seen.last_mut().expect("one").1 = last - std::mem::replace(&mut before, last);
        }
        let expected = [(1, 3), (2, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 2), (1, 1), (1, 1), (1, 2)];
        assert_eq!(seen, expected);
    }
}
