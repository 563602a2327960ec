//! Crashes of the log. Acknowledged records are there, once and in order. Of the others, a prefix
//! may be there, and nothing else is. The disk is simulated, and a turn of the log's thread is a
//! call.

use std::io::ErrorKind;

use tidemill_env::Disk;
use tidemill_sim::{DiskOp, Image, SimDisk, SimEnv, SimRandom};

use super::*;

const TOPICS: [Topic; 4] = [Topic::Cuts, Topic::Input(0), Topic::Input(1), Topic::Output(0)];
const DIR: &str = "/log";
const FAULTS: [ErrorKind; 2] = [ErrorKind::Other, ErrorKind::StorageFull];

/// A record that was taken: its unique bytes, its generation, the turn, and the number of records
/// that had been taken before.
#[derive(Clone, Debug)]
struct Taken {
    bytes: Vec<u8>,
    generation: u64,
    turn: u64,
    nth: u64,
}

/// The expected content of a topic.
#[derive(Clone, Debug, Default)]
struct Model {
    records: Vec<Taken>,
    /// The trims: an offset and the turn of each.
    trims: Vec<(u64, u64)>,
    /// The generation of the taken records.
    generation: u64,
}

impl Model {
    fn next(&self) -> u64 {
        self.records.len() as u64
    }
}

type Models = BTreeMap<Topic, Model>;

type Answer = std::result::Result<u64, Refused>;

/// The answer to a job, once it has one.
type Answered<T> = Arc<Mutex<Option<T>>>;

/// A requested append.
struct Asked {
    topic: Topic,
    generation: u64,
    records: Vec<Vec<u8>>,
    /// The expected offset, or `None` if it is too late.
    offset: Option<u64>,
    answer: Answered<Answer>,
}

/// A log that is driven by a test, and its expected content.
struct Life {
    disk: Arc<SimDisk>,
    dice: SimRandom,
    files: Files,
    shared: Shared,
    models: Models,
    turn: u64,
    /// The number of records that were taken.
    taken: Arc<Mutex<u64>>,
    /// Whether something has failed. After that nothing is taken.
    has_failed: bool,
    ids: u64,
}

/// Returns the state of a run, as a mark in the recording of its disk.
fn mark(turn: u64, taken: u64) -> u64 {
    turn << 32 | taken
}

fn open(env: &Env) -> Result<Files> {
    let sizes = Sizes { segment: 700, waiting_max: 1 << 30, trim: 300 };
    Files::open(env, DIR.into(), 7, hold(env, Path::new(DIR))?, sizes)
}

impl Life {
    fn new(seed: u64) -> Life {
        let sim = SimEnv::new(seed);
        sim.disk.record();
        let models = TOPICS.iter().map(|topic| (*topic, Model::default())).collect();
        let files = open(&sim.env()).expect("nothing fails");
        Life::on(sim.disk.clone(), files, models, seed)
    }

    fn on(disk: Arc<SimDisk>, files: Files, models: Models, seed: u64) -> Life {
        let (dice, shared) = (SimRandom::new(seed ^ 0x5eed), Shared::default());
        // Records of this life differ from those of an earlier one.
        let ids = seed.wrapping_mul(1 << 20);
        let taken = Arc::default();
        let (turn, has_failed) = (0, false);
        Life { disk, dice, files, shared, models, turn, taken, has_failed, ids }
    }

    fn record(&mut self) -> Vec<u8> {
        self.ids += 1;
        let mut bytes = self.ids.to_be_bytes().to_vec();
        bytes.resize(8 + self.dice.below(60) as usize, self.ids as u8);
        bytes
    }

    /// Runs some jobs at once, as if they had waited for the disk. Returns the appends that were
    /// not taken since something has failed.
    fn turn(&mut self) -> Vec<Asked> {
        self.turn += 1;
        self.disk.mark(mark(self.turn, *self.taken.lock()));
        // The state of each topic if all jobs succeed.
        let mut will: BTreeMap<Topic, (u64, u64)> = (self.models.iter())
            .map(|(topic, model)| (*topic, (model.next(), model.generation)))
            .collect();
        let (mut jobs, mut asked, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..1 + self.dice.below(5) {
            let topic = TOPICS[self.dice.below(4) as usize];
            match self.dice.below(8) {
                0 => {
                    // At most what was there when the turn began, because only durable records are
                    // trimmed.
                    let model = self.models.get_mut(&topic).expect("it is one of them");
                    let below = self.dice.below(model.next() + 1);
                    model.trims.push((self.turn, below));
                    jobs.push(Job::Trim { topic, below });
                }
                1 => {
                    let (from, found) = (self.dice.below(will[&topic].0 + 1), Answered::default());
                    let limit = (self.dice.below(2) == 0).then_some(3);
                    let told = Arc::clone(&found);
                    let then = Box::new(move |answer| *told.lock() = answer);
                    jobs.push(Job::Read { topic, from, limit, wait_us: 0, then });
                    reads.push((topic, from, found));
                }
                kind => {
                    let append = self.append(topic, kind == 2, &mut will);
                    jobs.push(append.0);
                    asked.push(append.1);
                }
            }
        }
        self.shared.waiting.lock().bytes = 1 << 30;
        self.files.work(jobs, &self.shared);
        self.judge(asked, reads)
    }

    fn append(
        &mut self,
        topic: Topic,
        is_first: bool,
        will: &mut BTreeMap<Topic, (u64, u64)>,
    ) -> (Job, Asked) {
        let (next, last) = will[&topic];
        let is_input = matches!(topic, Topic::Input(_));
        // Usually the current generation, else a later or an earlier one, or the first record of
        // the next.
        let generation = match self.dice.below(6) {
            _ if is_input => 0,
            0 => last.saturating_sub(1),
            1 => last + 1,
            _ => last + u64::from(is_first),
        };
        let begins = (is_first && !is_input).then_some(generation);
        let count = if begins.is_some() { 1 } else { 1 + self.dice.below(3) };
        let records: Vec<Vec<u8>> = (0..count).map(|_| self.record()).collect();
        let is_late = match begins {
            Some(number) => last >= number,
            None => last > generation,
        };
        let offset = (!is_late || is_input).then_some(next);
        if offset.is_some() {
            will.insert(topic, (next + count, last.max(generation)));
        }
        let answer: Answered<Answer> = Arc::default();
        let (told, disk, taken) = (Arc::clone(&answer), self.disk.clone(), self.taken.clone());
        let turn = self.turn;
        let then = Box::new(move |answer: Answer| {
            if answer.is_ok() {
                let mut taken = taken.lock();
                *taken += count;
                disk.mark(mark(turn, *taken));
            }
            assert_eq!(told.lock().replace(answer), None, "answered once");
        });
        let job = Job::Append { topic, generation, begins, records: records.clone(), then };
        (job, Asked { topic, generation, records, offset, answer })
    }

    fn judge(
        &mut self,
        asked: Vec<Asked>,
        reads: Vec<(Topic, u64, Answered<Found>)>,
    ) -> Vec<Asked> {
        let mut nth = self.models.values().map(Model::next).sum();
        let had_failed = self.has_failed;
        let mut unknown = Vec::new();
        for asked in asked {
            let answer = asked.answer.lock().take().expect("it was answered");
            match (answer, asked.offset) {
                (Ok(offset), _) => {
                    assert!(!had_failed, "a record was taken after a failure");
                    assert_eq!(Some(offset), asked.offset, "{:?}", asked.topic);
                    let model = self.models.get_mut(&asked.topic).expect("it is one of them");
                    let (generation, turn) = (asked.generation, self.turn);
                    for bytes in asked.records {
                        model.records.push(Taken { bytes, generation, turn, nth });
                        nth += 1;
                    }
                    model.generation = model.generation.max(generation);
                }
                // An append after the failure may have been too late.
                (Err(Refused::Fenced), offset) => assert!(had_failed || offset.is_none()),
                (Err(Refused::Unknown), _) => {
                    self.has_failed = true;
                    unknown.push(asked);
                }
            }
        }
        self.has_failed |= self.shared.failed.lock().is_some();
        if !unknown.is_empty() {
            assert!(self.shared.failed.lock().is_some(), "the error is not reported");
        }
        for (topic, from, found) in reads {
            let Some(Found { records, upto }) = found.lock().take() else { continue };
            let model = &self.models[&topic];
            assert!(upto <= model.next().max(from));
            let below = model.trims.iter().map(|(_, below)| *below).max().unwrap_or(0);
            let mut expected = from;
            for (offset, bytes) in records {
                expected = if expected < below { offset } else { expected };
                assert_eq!(offset, expected, "no record is left out");
                assert_eq!(&*bytes, &model.records[offset as usize].bytes);
                expected += 1;
            }
        }
        unknown
    }

    fn turns(&mut self, count: u64) {
        for _ in 0..count {
            let unknown = self.turn();
            assert!(unknown.is_empty() && !self.has_failed, "nothing has failed");
        }
    }
}

/// Checks a log that was opened again. It has all records that had been taken, and a prefix of
/// those that the turn had requested. Returns its content as the new models.
fn check(files: &mut Files, models: &Models, turn: u64, taken: u64) -> Models {
    let mut left = Models::new();
    for (topic, model) in models {
        let nothing = TopicRecords::default();
        let stored = files.topics.0.get(topic).unwrap_or(&nothing);
        let there = model.records.iter().filter(|record| record.nth < taken).count() as u64;
        let asked = model.records.iter().filter(|record| record.turn <= turn).count() as u64;
        let next = stored.next();
        assert!(next >= there, "{topic:?}: {there} were acknowledged, and it ends at {next}");
        assert!(next <= asked, "{topic:?}: {asked} were asked for, and it ends at {next}");
        let trims = model.trims.iter().filter(|(of, _)| *of <= turn);
        let below = trims.clone().map(|(_, below)| *below).max().unwrap_or(0);
        assert!(stored.first <= below, "{topic:?}: it begins at {}, not {below}", stored.first);
        for (offset, (_, bytes)) in (stored.first..).zip(&stored.records) {
            assert_eq!(&**bytes, &model.records[offset as usize].bytes, "{topic:?} at {offset}");
        }
        let records: Vec<Taken> = model.records[..next as usize].to_vec();
        let generation = records.iter().map(|record| record.generation).max().unwrap_or(0);
        assert!(stored.generation >= generation, "{topic:?} has lost its fence");
        let again = |record: Taken| Taken { turn: 0, nth: 0, ..record };
        let records = records.into_iter().map(again).collect();
        let trims = trims.map(|(_, below)| (0, *below)).collect();
        // A generation that was requested in a turn may be in the stored part of that turn.
        let generation = stored.generation;
        let last = model.records.iter().filter(|record| record.turn <= turn);
        assert!(generation <= last.map(|record| record.generation).max().unwrap_or(0));
        left.insert(*topic, Model { records, trims, generation });
    }
    left
}

fn env_of(disk: &Arc<SimDisk>, seed: u64) -> Env {
    Env { disk: disk.clone(), ..SimEnv::new(seed).env() }
}

/// Opens the log that a crash has left, perhaps with crashes while doing so. It must be good, and
/// usable.
fn recover(image: &Image, models: &Models, seed: u64) {
    let at = image.mark.unwrap_or(0);
    let (turn, taken) = (at >> 32, at & 0xffff_ffff);
    let disk = &image.disk;
    let dice = SimRandom::new(seed ^ image.at as u64);
    let env = env_of(disk, seed);
    for _ in 0..dice.below(3) {
        disk.fail_from(None, 1 + dice.below(12), ErrorKind::Other);
        let _ = open(&env);
        disk.crash_torn();
    }
    let mut files = open(&env).unwrap_or_else(|e| panic!("{image:?}: {e}"));
    let models = check(&mut files, models, turn, taken);
    let mut life = Life::on(disk.clone(), files, models, seed + 1 + image.at as u64);
    life.turns(3);
    let (models, turn, taken) = (life.models.clone(), life.turn, u64::MAX);
    drop(life);
    disk.crash();
    let mut files = open(&env).unwrap_or_else(|e| panic!("{image:?}, again: {e}"));
    check(&mut files, &models, turn, taken);
}

/// Runs a life, and checks every moment at which the machine may stop.
fn crashes(seed: u64) -> usize {
    let mut life = Life::new(seed);
    life.turns(12);
    let (models, trace) = (life.models.clone(), life.disk.take_trace());
    // Only some moments for each seed, because there are many seeds.
    let images = trace.images(seed, 1).enumerate().filter(|(n, _)| n % 3 == seed as usize % 3);
    images.map(|(_, image)| recover(&image, &models, seed)).count()
}

/// Runs on a disk that fails somewhere, and perhaps works again later. Nothing more is taken, and
/// taken records are there.
fn failure(seed: u64) {
    let mut life = Life::new(seed);
    let env = env_of(&life.disk, seed);
    let turns = life.dice.below(8);
    life.turns(turns);
    let kind = FAULTS[life.dice.below(2) as usize];
    let nth = 1 + life.dice.below(6);
    match life.dice.below(4) {
        0 => life.disk.fail_nth(None, nth, kind),
        1 => life.disk.fail_nth(DiskOp::Sync, nth, kind),
        2 => life.disk.fail_nth(DiskOp::Write, nth, kind),
        _ => life.disk.fail_from(None, nth, kind),
    }
    let mut unknown = Vec::new();
    for _ in 0..30 {
        let more = life.turn();
        if unknown.is_empty() {
            // Only these may be there. Later ones were requested from a log that had failed.
            unknown = more;
        }
    }
    assert!(life.has_failed, "thirty turns make so many calls");
    let (mut models, turn) = (life.models.clone(), life.turn);
    let taken = models.values().map(Model::next).sum();
    for Asked { topic, generation, records, offset, .. } in unknown {
        let model = models.get_mut(&topic).expect("it is one of them");
        if offset == Some(model.next()) {
            let record = |bytes| Taken { bytes, generation, turn, nth: u64::MAX };
            model.records.extend(records.into_iter().map(record));
        }
    }
    let how = life.dice.below(3);
    let disk = life.disk.clone();
    drop(life);
    match how {
        0 => disk.kill(),
        1 => disk.crash(),
        _ => disk.crash_torn(),
    }
    let mut files = open(&env).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let models = check(&mut files, &models, turn, taken);
    Life::on(disk, files, models, seed + 1).turns(3);
}

fn cases(default: u64, weight: u64) -> u64 {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse::<u64>().ok());
    cases.map_or(default, |cases| (cases / weight).max(1))
}

#[test]
fn whatever_moment_it_stops_at_nothing_is_lost_and_nothing_is_new() {
    let count: usize = (0..cases(40, 50)).map(crashes).sum();
    println!("{count} crashes");
}

#[test]
fn nothing_is_taken_behind_a_failure() {
    (0..cases(400, 5)).for_each(failure);
}

#[test]
fn nothing_is_taken_behind_what_there_was_no_room_for() {
    let shared = Shared::default();
    let takes = |topic, generation, bytes| shared.takes(topic, generation, bytes, 100);
    assert!(takes(Topic::Cuts, 1, 60));
    assert!(!takes(Topic::Cuts, 1, 60));
    assert!(!takes(Topic::Cuts, 1, 1), "there would be a gap");
    assert!(takes(Topic::Output(0), 1, 1), "another topic");
    assert!(takes(Topic::Cuts, 2, 1), "the next generation has begun after it");
    assert!(!takes(Topic::Input(0), 0, 60));
    assert!(takes(Topic::Input(0), 0, 1), "requests do not wait for each other");
}

/// Writes a log of one record of this kind.
fn written(sim: &SimEnv, kind: u8) {
    let spec =
        LogSpec { dir: DIR.into(), kind: LogKind::Cuts, app: 7, segment_bytes: SIZES.segment };
    let mut log = tidemill_log::Log::open(sim.env().disk, spec, 0).unwrap();
    let mut record = Vec::new();
    put_topic(Topic::Input(0), &mut record);
    put_u64(0, &mut record);
    put_u64(0, &mut record);
    record.push(77);
    log.append(kind, &record).unwrap();
    log.commit().unwrap();
}

#[test]
fn what_another_version_has_written_is_refused() {
    for kind in [RECORD_FIRST, RECORD - 1, RECORD + 1, 2, 63] {
        let sim = SimEnv::new(kind.into());
        written(&sim, kind);
        let error = open(&sim.env()).err().expect("it is refused").to_string();
        let is_version = !(2..64).contains(&kind);
        let wanted = if is_version { "another version of Tidemill" } else { "belong to a cluster" };
        assert!(error.contains(wanted), "{kind}: {error}");
    }
}

/// A record that can't be decoded is no gap. A reader that skipped it would lose it.
#[test]
fn a_record_that_cannot_be_read_ends_the_process() {
    let sim = SimEnv::new(1);
    written(&sim, RECORD);
    let env = sim.env();
    let log =
        FileLog::open(&env, DIR.into(), 7, hold(&env, Path::new(DIR)).unwrap(), SIZES.segment)
            .unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let then = Box::new(move |found: Option<Records>| tell.send(found.is_some()).unwrap());
    log.read(Topic::Input(0), 0, None, 0, then);
    assert!(!told.recv().unwrap());
    assert!(log
        .failed()
        .unwrap()
        .to_string()
        .contains("record 0 of the log can't be read (Input(0))"));
}

/// The lock's file is removed, as by someone who believes that it is stale.
#[test]
fn a_directory_is_held_without_its_file() {
    let env = SimEnv::new(1).env();
    let held = hold(&env, Path::new(DIR)).unwrap();
    env.disk.remove(&Path::new(DIR).join("LOCK")).unwrap();
    let error = hold(&env, Path::new(DIR)).err().expect("it is held").to_string();
    assert!(error.contains("another process uses the directory"), "{error}");
    assert!(!env.disk.exists(&Path::new(DIR).join("LOCK")).unwrap(), "nothing is touched");
    drop(held);
    hold(&env, Path::new(DIR)).unwrap();
}

/// A full disk is waited for, with a reason, and nothing is answered before there is room.
#[test]
fn a_full_disk_is_waited_for() {
    let sim = SimEnv::new(1);
    let real = Env::real().clock;
    let env = Env { clock: real.clone(), ..sim.env() };
    let log =
        FileLog::open(&env, DIR.into(), 7, hold(&env, Path::new(DIR)).unwrap(), SIZES.segment)
            .unwrap();
    let is_full = || sim.disk.fail_from(DiskOp::Write, 1, std::io::ErrorKind::StorageFull);
    is_full();
    let (told, hears) = std::sync::mpsc::channel();
    let append = |told: std::sync::mpsc::Sender<Answer>| {
        let then = Box::new(move |answer| told.send(answer).unwrap());
        log.append_raw(Topic::Cuts, 0, None, vec![vec![1; 300_000]], then);
    };
    append(told.clone());
    append(told);
    while log.trouble().is_none() {
        real.sleep_us(1000);
    }
    assert!(log.trouble().unwrap().contains("no room"), "{:?}", log.trouble());
    assert!(hears.try_recv().is_err() && log.failed().is_none());
    sim.disk.clear_faults();
    assert_eq!([hears.recv().unwrap(), hears.recv().unwrap()], [Ok(0), Ok(1)]);
    assert_eq!(log.trouble(), None);
    // A log that is no longer used does not wait.
    is_full();
    let (told, hears) = std::sync::mpsc::channel();
    let then = Box::new(move |answer: Answer| told.send(answer).unwrap());
    log.append_raw(Topic::Cuts, 0, None, vec![vec![2; 300_000]], then);
    while log.trouble().is_none() {
        real.sleep_us(1000);
    }
    drop(log);
    assert_eq!(hears.recv().unwrap(), Err(Refused::Unknown));
}

/// Copies the files as they are now.
fn copied(disk: &SimDisk) -> SimEnv {
    disk.record();
    let image = disk.take_trace().images(1, 0).nth(1).expect("an image with everything");
    SimEnv { disk: image.disk, ..SimEnv::new(1) }
}

/// Returns the step between tested cases. All of them are tested if `TIDEMILL_CASES` asks for many.
fn every(sampled: usize) -> usize {
    let cases: Option<usize> = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    match cases.is_some_and(|cases| cases >= 1000) {
        true => 1,
        false => sampled,
    }
}

/// Any bit of the last segments, any length of them, and any missing file: all acknowledged records
/// are there, or the log is refused with the name of the file.
#[test]
fn damage_is_refused_or_does_not_matter() {
    let sim = SimEnv::new(1);
    let (env, shared) = (sim.env(), Shared::default());
    let mut files = open(&env).unwrap();
    let mut taken: BTreeMap<Topic, Vec<Vec<u8>>> = BTreeMap::new();
    for nth in 0..24u8 {
        let topic = TOPICS[usize::from(nth) % 4];
        let records = vec![vec![nth; 30 + usize::from(nth)]; 1 + usize::from(nth) % 2];
        taken.entry(topic).or_default().extend(records.clone());
        let (told, hears) = std::sync::mpsc::channel();
        let then = Box::new(move |answer: Answer| told.send(answer).unwrap());
        shared.waiting.lock().bytes = 1 << 30;
        let append = Job::Append { topic, generation: 0, begins: None, records, then };
        files.work(vec![append], &shared);
        assert!(hears.recv().unwrap().is_ok());
    }
    drop(files);
    let (mut refused, mut whole) = (0, 0);
    let mut check = |what: &str, damage: &dyn Fn(&SimDisk)| {
        let sim = copied(&sim.disk);
        damage(&sim.disk);
        match open(&sim.env()) {
            Err(error) => {
                assert!(!error.help.is_empty() && error.what.contains("/log"), "{what}: {error}");
                refused += 1;
            }
            Ok(files) => {
                for (topic, records) in &taken {
                    let found = files.topics.find(*topic, 0, None).records;
                    let found: Vec<Vec<u8>> =
                        found.iter().map(|(_, bytes)| bytes.to_vec()).collect();
                    assert_eq!(&found, records, "{what}: {topic:?}");
                }
                whole += 1;
            }
        }
    };
    let all = env.disk.list(Path::new(DIR)).unwrap();
    let is_segment = |path: &&PathBuf| path.extension().is_some_and(|end| end == "log");
    let segments: Vec<PathBuf> = all.iter().filter(is_segment).cloned().collect();
    assert!(segments.len() > 4, "{segments:?}");
    for path in &segments[segments.len() - 3..] {
        let len = env.disk.metadata(path).unwrap().len;
        for bit in (0..len * 8).step_by(every(23)) {
            let what = format!("bit {bit} of {}", path.display());
            check(&what, &|disk| disk.flip_bit(path, bit).unwrap());
        }
        for len in (0..len).step_by(every(5)) {
            let what = format!("{} bytes of {}", len, path.display());
            check(&what, &|disk| disk.truncate(path, len).unwrap());
        }
    }
    for path in &all {
        check(&format!("without {}", path.display()), &|disk| disk.remove(path).unwrap());
    }
    let remove = |disk: &SimDisk, of: &[PathBuf]| of.iter().for_each(|p| disk.remove(p).unwrap());
    check("without segments", &|disk| remove(disk, &segments));
    let last = [segments[segments.len() - 1].clone()];
    check("without the last", &|disk| remove(disk, &last));
    println!("{refused} refused, {whole} whole");
    assert!(refused > 100 && whole > 100, "{refused} refused, {whole} whole");
}
