//! `rivulet serve`: files over Rivulet, and over plain TCP beside it.

pub mod plain;
