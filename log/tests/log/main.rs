//! Tests the promises of a log against a model that is a list of records.

mod common;
mod crash_points;
mod damage;
mod faults;
mod golden;
mod life;
mod model;
