//! The library of the package `tidemill`. Python finds the module `_native` in it, which is in the
//! crate `python`. The library of the benchmarks has the same module, so that crate is compiled
//! once, without an own library.

use tidemill_python as _;
