// Package storage keeps on disk the state that a half needs after a restart: its boot epoch (epoch.go), its undelivered
// reports (reportlog.go), its orders (orders.go), and the copy of its state in mapped memory (copyfile.go).
//
// # The boot epoch
//
// A boot epoch grows with every start and never goes back: it separates the reports of this incarnation from earlier
// ones. A half without a file, on its first start or because the file is lost, draws a number at random. If it took 1
// each time, supervisors would mistake its reports for copies of earlier ones and acknowledge them, and they would be
// lost. A supervisor that has seen a higher epoch answers STALE_EPOCH with the next one (pkg/servicenet), and
// SetEpoch stores it.
//
// # The copy
//
// The copy is the state from which a half resumes after a kill: the least state that suffices, outside the
// process that it protects, always up to date (seed 000 §4). The network processor there resumes from the host's
// memory; a half here resumes from a file in mapped memory, which survives its process. It does not outlive the
// machine: a copy of another boot of the kernel is cold, and undelivered reports have a spool for that
// (pkg/servicenet/spool).
//
// # Who may write
//
// The half while it lives, then its recovery daemon until the half is started again: each takes the file's lock
// (flock), which ends with its process. No other process may write.
//
// # The file
//
// It is preallocated and mapped, and belongs to root or the half's user, because it holds the keys of the links'
// sessions. It consists of two copies of the same cells, A in its first half and B in its second. A cell begins with
// 16 bytes, little-endian:
//
//	0  CRC-32C over the cell's number, all that follows here, and the payload
//	4  length of the payload
//	8  sequence number of the store
//
// The payload follows. A store writes the whole of A, then the whole of B, so that at any instruction one of them is
// good: after a kill there, a half finds the old or the new payload, and nothing else. A load takes the good copy
// with the higher sequence number, and repairs the other from it. So a flipped bit in either is masked. A cell
// without a good copy is lost: the state that depends on it begins cold. A cell of zeros was never written.
//
//	head         layout version, half, node, kernel's boot, the file's own inode: a copy of this file is none
//	numbers      boot epoch, last sequence number given, last id of a path request, number of the jobs' list
//	baselines    usual values that the self-test has learned
//	sensors      last state of each sensor, and the window behind it
//	reports      1,024: undelivered, each with the time when it was logged
//
// of a host half besides
//
//	paths        the sessions with the supervisors, to authenticate their messages
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
// State is stored before it leaves: the number of a frame before the frame, the number of a report and the report
// before their datagram, a message before its acknowledgement. So no peer has seen state that the copy lacks. The
// reverse is harmless: a number that was stored and never used is a gap of one.
//
// # When the file fails
//
// A CopyFile holds the cells in its own memory too, and works the same for the half with or without its file. If the file
// is truncated, unlinked, replaced or on a full file system, stores return an error, and Maintain recreates it with
// all its cells as soon as possible. A file that missed a store is spoilt first: no half may resume from it, since a
// link must never use a sequence number twice under one key.
package storage
