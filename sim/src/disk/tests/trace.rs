//! Checks that the images of a trace are the states that crashes leave.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::*;

/// Publishes files by rename, ten times, and marks each acknowledged one.
fn publish(disk: &SimDisk) {
    for n in 1..=10_u64 {
        let mut file = disk.create(&at("tmp")).unwrap();
        file.write_all(&n.to_le_bytes()).unwrap();
        file.sync().unwrap();
        disk.rename(&at("tmp"), &at("a")).unwrap();
        disk.sync_dir(&dir()).unwrap();
        disk.mark(n);
    }
}

#[test]
fn an_image_keeps_what_was_acknowledged() {
    let disk = disk(1);
    publish(&disk);
    disk.record();
    publish(&disk);
    let trace = disk.take_trace();
    assert_eq!(trace.len(), 10 * 6);
    let mut seen = BTreeSet::new();
    for image in trace.images(7, 5) {
        let left = read(&*image.disk, &at("a")).unwrap();
        let left = u64::from_le_bytes(left.try_into().unwrap());
        let marked = image.mark.unwrap_or(10);
        assert!(left == marked || left == marked % 10 + 1, "{image:?}: {left}");
        seen.insert((image.at, left));
    }
    assert!(seen.len() > trace.len() + 10, "some moments have two outcomes");
    assert_eq!(seen.iter().map(|(at, _)| at).max(), Some(&trace.len()));
}

/// The image of a moment is the state that a crash at that moment leaves.
#[test]
fn images_are_what_crashes_leave() {
    let disk = disk(1);
    let expected = RefCell::new(BTreeMap::new());
    disk.record();
    random_calls(&*disk, Path::new("/d"), &SimRandom::new(3), || {
        let machine = disk.shared.machine.lock();
        let moment = machine.trace.as_ref().map_or(0, Trace::len);
        for (i, left) in [Left::Synced, Left::Written].into_iter().enumerate() {
            let (clock, random) = (disk.shared.clock.clone(), SimRandom::new(0));
            let copy = SimDisk::with_state(clock, random, machine.state.after_crash(left));
            expected.borrow_mut().insert((moment, i), contents(&copy));
        }
    });
    let trace = disk.take_trace();
    let images = trace.images(1, 0).map(|image| {
        let i = usize::from(image.left == Left::Written);
        ((image.at, i), contents(&image.disk))
    });
    let images: BTreeMap<_, _> = images.collect();
    assert!(expected.borrow().len() > 100);
    for (moment, contents) in expected.take() {
        assert_eq!(images[&moment], contents, "{moment:?}");
    }
}

type Contents = BTreeMap<PathBuf, Vec<u8>>;

fn contents(disk: &SimDisk) -> Contents {
    let state = &disk.shared.machine.lock().state;
    let file = |(path, node): (&PathBuf, &Node)| match node {
        Node::File(id) => Some((path.clone(), state.file(*id).data.to_vec())),
        Node::Dir { .. } => None,
    };
    state.names.iter().filter_map(file).collect()
}

#[test]
fn images_do_not_disturb_each_other_and_repeat_from_the_seed() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), &[0; 4000]);
    disk.record();
    for n in 1..100 {
        file.write_all(&[n; 100]).unwrap();
    }
    let trace = disk.take_trace();
    assert_eq!(trace.len(), 99);
    let run = |spoil: bool| -> Vec<Contents> {
        let image = |image: Image| {
            let contents = contents(&image.disk);
            if spoil {
                image.disk.flip_bit(&at("a"), 3).unwrap();
                store(&*image.disk, &at("a"), b"other");
            }
            contents
        };
        trace.images(5, 3).map(image).collect()
    };
    let images = run(false);
    assert_eq!(images.len(), 5 * 100);
    assert_eq!(images, run(true));
    let others: Vec<_> = trace.images(6, 3).map(|image| contents(&image.disk)).collect();
    assert_ne!(images, others);
    assert_eq!(read(&*disk, &at("a")).unwrap().len(), 13_900);
}

/// A machine that crashes while it recovers: an image can be recorded and crashed again.
#[test]
fn an_image_can_be_recorded_in_turn() {
    let disk = disk(1);
    disk.record();
    publish(&disk);
    let image = disk.take_trace().images(1, 0).last().unwrap();
    image.disk.record();
    publish(&image.disk);
    let trace = image.disk.take_trace();
    assert_eq!(trace.images(1, 0).count(), 2 * (trace.len() + 1));
}

#[test]
fn ten_thousand_images_of_large_files_are_cheap() {
    let disk = disk(1);
    for name in ["a", "b", "c"] {
        store(&*disk, &at(name), &vec![1; 10 << 20]);
    }
    disk.record();
    for n in 0..1000 {
        disk.create(&at("n")).unwrap().write_all(&[n as u8]).unwrap();
        disk.sync_dir(&dir()).unwrap();
    }
    let trace = disk.take_trace();
    let whole = trace.images(1, 2).map(|image| read(&*image.disk, &at("n")).map_or(0, |n| n.len()));
    assert!(whole.count() > 10_000);
}
