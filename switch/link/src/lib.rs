//! Link shaping: rate, delay, loss, reordering, queue.
