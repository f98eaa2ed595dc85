// Package servicenet is the service network's part in the delivery of reports: the codec between
// package fault and the wire messages, the envelopes and how they are proved, the sender's log and
// its paths (Outbox) and the receiver's memory of what has come (Inbox). Seed 001 §III-D is what it is
// for, seed 002 §5 gives the checksum, seed 004 §II-B and §IV the paths; the two acknowledgements and
// the rails are the project's own.
//
// It is pure: it reads no clock, opens no socket, starts no goroutine and logs nothing. What does is in
// packages of its own below it: the rails (direct, gossip; the torus rail belongs to the agent), the
// table of sessions (sessions). Beside it, as pure as it is, stand checksum, keys and bulk. It decides
// nothing about health, except what missing acknowledgements say about the sender's own service
// network.
//
// # On the wire
//
// Everything but the chunks of a bulk transfer is an Envelope of at most MaxDatagram bytes
// (api/lofamo/v1/wire.proto):
//
//	Envelope { payload = Message, certificate + signature | session + MAC, checksum }
//	Message  { a body, acks, or both }
//
//	body or acks                who may say it                  a MAC will do
//	Reports                     the half itself                 when all are digests
//	Answer, PathRequest,
//	PathAck, BulkAnnounce,
//	RenewRequest                the half itself                 no
//	answers to orders           the half itself                 no
//	Interest                    the host half itself            no
//	Relayed { inner, hops }     the host half that is the       no
//	                            last hop
//	acks, Again, Challenge,
//	Told                        a supervisor                    yes
//	Downcall { node, inner }    a supervisor                    yes; inner is signed
//	PathReply, BulkRequest,
//	BulkPull, orders,
//	DenyPart, RenewReply        a supervisor                    no
//
// Orders and their answers are listed by kind in orderForms. PeerStatus, MapFindings and ConfigurationStatus name no half: the
// DNP half signs them.
//
// A Relayed holds reports, an answer, an answer to an order or an announcement; a Downcall whatever a supervisor says. What
// stands within is an envelope of its own, with the checksum and the signature that its origin gave
// it. No message is allowed to both roles, so one thrown back at its sender is refused even where both
// ends have the same key.
//
// A receiver looks, in this order, at
//
//	the size and the form   RefusedTooLong, RefusedMalformed
//	the checksum            RefusedChecksum
//	the signature           RefusedSignature, RefusedRevoked
//	or the MAC              RefusedSession when the session is not known, RefusedSignature
//	the message's form      RefusedMalformed, RefusedUnknownMessage
//	every field             RefusedField, RefusedNested
//	who says it             RefusedRole, RefusedOrigin
//
// and next to nothing is allocated before it is proved. Unknown fields are kept and ignored, an unknown
// body is errUnknownMessage, anything outside its range is refused with a Refusal to count.
//
// # Damage
//
// The checksum is over all that stands before it in the envelope, tags and lengths as well. With any
// algorithm, every single flipped bit and every cut is refused as damage (IsDamaged), before any
// signature is looked at: it is asked for again and never counted as forgery. More bits than one pass
// as rarely as the algorithm lets them, and then meet the signature. Without a checksum (NONE) the
// signature or MAC refuses the same bits, and nothing tells them from forgery; NONE is said on the
// wire, so that a checksum that was lost does not look like it. What a later version adds to the
// envelope is not covered. A forger computes the checksum too: it authenticates nothing.
//
// # Sessions
//
// PathRequest and PathReply carry an X25519 key each; the two give a SessionKey (package keys), whose
// MAC costs a fiftieth of a signature. It proves only what is replaced soon, or is said by one
// supervisor to one half; whatever a third must believe is signed. Sessions live in memory: after a
// restart a MAC is of an unknown session, the retry is signed, and the path is asked for anew.
//
// # Delivery
//
// An Outbox sends what waits, several reports in one datagram (batchLimit), on one path of the direct
// rail, and on more rails for as long as no RECEIVED comes; it keeps each report until COMMITTED. How
// its reports fare goes along with its digests, by the torus in numbers only (statusFor), and behind it, where there
// is room, how the halves fare (FitHealth). Of
// the paths, one per service interface and supervisor, one is the primary and another a loaded
// alternate (seed 004 §II-B), so that a switch needs no message. What a spool on disk kept over a
// restart comes back by Outbox.Restore, under its old ids.
//
// Receivers drop duplicates by (origin, epoch, sequence number) in an Inbox whose positions are stored
// with the commit; it knows the newest epochs of an origin, so that what was restored is taken once.
// Both sides hold the same bound: no report is sent WindowBits or more ahead of an older one in the
// log, so the window never closes over a report that is still wanted.
package servicenet
