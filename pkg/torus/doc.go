// Package torus defines the traffic on one torus link and each end's conclusions from that traffic: the frame codec,
// the session that authenticates frames, and the link machine (seed 001 §III-D, §IV-B).
//
// It is pure: it opens no socket, reads no clock and starts no goroutine. The geometry stands in
// pkg/torus/grid, the UDP flow and the handshake in pkg/torus/udplink. It does not interpret the
// status words that it carries (pkg/watchdog) nor the payload of a Message.
//
// # Frame, version 1
//
// All integers are big endian. The CRC stands outermost, so that a frame damaged anywhere is a
// link error; the MAC stands inside it, so that a frame good in CRC and bad in MAC is an attack.
//
//	offset  size  field
//	     0     2  magic 0x4c46 ("LF")
//	     2     1  version, 1
//	     3     1  type
//	     4     2  length of the whole frame, CRC included
//	     6     1  direction in which the sender sent it: 1 to 6 for X+ X- Y+ Y- Z+ Z-
//	     7     1  flags
//	     8     6  source coordinate, 3 × 16 bits
//	    14     6  destination coordinate, 3 × 16 bits
//	    20     4  session
//	    24     8  boot epoch of the sender's DNP half
//	    32     8  sequence number within the session, from 1
//	    40     8  acknowledgement: the highest sequence number heard from the peer, 0 for none
//	    48     4  the sender's DNP watchdog word
//	    52     4  the sender's host watchdog word; not valid: the sender does not know whether its host lives
//	    56     n  payload
//	  56+n    16  MAC over everything before it: AES-128-GMAC, nonce = session and sequence number
//	  72+n     4  CRC-32 (IEEE) over everything before it
//
// A heartbeat is a frame without payload: 76 bytes. The paper's packets have 32 to 8,224 bytes; ours are capped by
// default at DefaultMaxFrame, the size of one UDP datagram on a path with an MTU of 1,500. At these lengths CRC-32
// finds every error of up to three bits.
//
// # Hops
//
// Messages that a node forwards for others go in frames of TypeHop to a neighbour that sets FlagHops. They are
// numbered, and the receiver acknowledges a message once it is stored where it outlives the receiver's process; until
// then the sender repeats it (HopHeader, Hop). A neighbour of an earlier version gets frames of TypeMessage, which
// are never acknowledged. Heartbeats are no longer than they were. A link without messages carries nothing else but a
// ping a second each way, of the express broadcast (pkg/torus/express), to a neighbour that sets FlagExpress.
//
// # Restart of a half
//
// The process that holds the sockets and the copy of a dead half announces its restart. A frame of TypeRestarting, of
// the half's session and with its next sequence number, gives the time at which the half means to be back. Meanwhile
// the link is sick and not broken, for MaxRestarting at most. The half resumes its session. If it does
// not return soon, the other end requests a new session, because the half may have begun its link again. An end that
// does not know the type sees only a frame and then silence.
//
// Types and flags that a receiver does not know are kept and ignored: a later version may add
// them without a new version number.
package torus
