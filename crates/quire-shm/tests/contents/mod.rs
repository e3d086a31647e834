//! What an object holds, by its descriptor and by its path.

use std::path::{Path, PathBuf};

use crate::harness::{Served, assert_well};
use crate::program;

#[test]
fn objects_are_read_and_written_like_files() {
    for served in Served::both() {
        let contents = program("contents");
        for what in ["descriptor", "path", "stream"] {
            for object in ["grid", "*"] {
                let output = served.run(object, &contents, &[what, "/grid"]).output();
                assert_well(&output.expect("it was built"));
                assert!(served.objects().is_empty(), "{what}: it was removed");
            }
        }
    }
}

/// A Python that has numpy.
fn python_with_numpy() -> Option<PathBuf> {
    let places = ["python3", "/opt/quire-compat/bin/python"];
    let has = |python: &&str| {
        let tried = std::process::Command::new(python)
            .args(["-c", "import numpy"])
            .output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    places.into_iter().find(has).map(PathBuf::from)
}

#[test]
fn numpy_maps_objects_by_their_paths() {
    let Some(python) = python_with_numpy() else {
        println!("SKIP: there is no numpy");
        return;
    };
    for served in Served::both() {
        let make = "import numpy
a = numpy.memmap('/dev/shm/grid', dtype='int64', mode='w+', shape=(1000,))
a[:] = numpy.arange(1000); a.flush()
numpy.save('saved.npy', numpy.full((3, 5), 7))";
        let usage = "import numpy, os
a = numpy.memmap('/dev/shm/grid', dtype='int64', mode='r+')
assert a.shape == (1000,) and a.sum() == 499500
a[0] = 5
assert numpy.fromfile('/dev/shm/grid', dtype='int64')[0] == 5
assert os.path.getsize('/dev/shm/grid') == 8000
assert (numpy.load('/dev/shm/saved', mmap_mode='r') == 7).all()
with open('/dev/shm/grid', 'rb') as f: assert len(f.read()) == 8000
os.remove('/dev/shm/saved'); os.remove('/dev/shm/grid')";
        for (program, options) in [(make, &["--keep"][..]), (usage, &[][..])] {
            let saved = format!("saved@{}", served.address);
            let options = [options, &["--dsm", &saved]].concat();
            let mut run = served.run_with("grid", &options, Path::new(&python));
            let run = run.args(["-c", program]).current_dir(served.path());
            assert_well(&run.output().expect("it was built"));
            if program == make {
                let file = served.path().join("saved.npy");
                served.does(&["object", "cp", file.to_str().expect("text"), ":saved"]);
            }
        }
        assert!(served.objects().is_empty(), "{:?}", served.objects());
    }
}
