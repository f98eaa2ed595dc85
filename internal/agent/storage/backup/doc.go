// Package backup keeps the copy from which a half goes on after it was killed: the least that suffices, outside the process
// that it protects, always up to date (seed 000 §4). What the host's memory is to the network processor there, a file in
// mapped memory is to a half here: what was stored is there whatever becomes of the process. It does not outlive the
// machine: a copy of another boot of the kernel is cold, and undelivered reports have a spool for that
// (pkg/servicenet/spool).
//
// # Who may write
//
// The half while it lives, then its recovery daemon until the half is started again: each takes the file's lock (flock),
// which ends with its process. Nobody else.
//
// # The file
//
// It is preallocated and mapped, and belongs to root or who runs the half: it holds the keys of the links' sessions. It is two
// copies, A in its first half and B in its second, of the same cells. A cell begins with 16 bytes, little-endian:
//
//	0  CRC-32C over the cell's number, all that follows here, and the payload
//	4  length of the payload
//	8  sequence number of the store
//
// and then has its payload. A store writes the whole of A, then the whole of B, so that at any instruction one of them is good:
// killed there, a half finds what was before or what was to be, and nothing else. Whoever loads takes the good one of the higher
// sequence number, and mends the other by it. So a flipped bit in either is masked. A cell of which neither copy is good is lost:
// what rests on it begins cold. A cell of zeros was never written.
//
//	head         layout version, half, node, kernel's boot, the file's own inode: a copy of this file is none
//	numbers      boot epoch, last sequence number given, last id of a path request, number of the jobs' list
//	baselines    what the self-test has learned
//	reports      1,024: undelivered, each with the time when it was logged
//
// of a host half besides
//
//	paths        the sessions with the supervisors, so that what they say under them is understood
//
// and of a DNP half
//
//	sessions     a link: id and keys
//	counters     a link: torus.LinkSnapshot
//	hops         a link: numbers and windows of messages that wait for their acknowledgement
//	relay slots  64: messages that were accepted and not yet passed on
//	express      64: broadcasts that not all neighbours are known to have
//	seen         the last broadcasts that were seen
//
// # The order
//
// A thing is stored before it leaves: the number of a frame before the frame, the number of a report and the report before their
// datagram, a message before its acknowledgement. So nobody has seen what is not in the copy. The reverse is harmless: a number that
// was stored and never used is a gap of one.
//
// # When the file fails
//
// A File holds the cells in its own memory too, and is the same for the half whether the file can be had or not: truncated,
// unlinked, replaced or on a full file system, stores return an error, and Maintain makes the file anew with everything in it
// as soon as that can be. A file that missed a store is spoilt first: it must not be believed, since a link's sequence number must
// never be used twice under one key.
package backup
