package watchdog

// The exception registers (Table VI). The paper gives their masks and states that "each of this faults has a related
// Exception Register", naming an over-threshold number of hops and the RDMA engine as examples (§IV-B); it does not
// define the bits. The following conditions raise them in this project. They are levels, not latches: the DNP half
// clears a bit when the condition is over.

// Bits of AddrRouter0: why the router refused messages.
const (
	RouterHopsExceeded uint32 = 1 << iota // a message travelled more than AddrMaxHops, the paper's own example
	RouterNoRoute                         // no live link towards the destination: not the core's fault
	RouterMalformed                       // the router could not encode a message
	RouterCacheFull                       // the cache of messages already forwarded overflowed
	RouterSelfTest                        // the self-test finds that relayed messages are altered or lost

	// Channel protocol checks (seed 003 §5.2.1.2): a neighbour's behaviour that no loss, delay or restart explains.
	RouterProtocolAck       // acknowledged messages that were never sent
	RouterProtocolOrder     // acknowledged frames that were never sent
	RouterProtocolStream    // restarted its message count without a restart
	RouterProtocolHops      // sent a message with no hop, or with too many
	RouterProtocolOutside   // sent a message for a destination outside the torus
	RouterProtocolBack      // sent a flooded message back to its previous node
	RouterProtocolExpress   // sent an invalid broadcast, barrier or data message
	RouterProtocolMalformed // sent a message that the router could not read

	RouterProtocol = RouterProtocolAck | RouterProtocolOrder | RouterProtocolStream | RouterProtocolHops | RouterProtocolOutside |
		RouterProtocolBack |
		RouterProtocolExpress | RouterProtocolMalformed
	RouterKnown = RouterHopsExceeded | RouterNoRoute | RouterMalformed | RouterCacheFull | RouterSelfTest | RouterProtocol
)

// RouterQueueFull returns the bit of AddrRouter1 for messages dropped because the queue of one direction was full.
// index is grid.Direction.Index; the bits are in the order of Table III, Z- lowest.
func RouterQueueFull(index int) uint32 { return 1 << (5 - index) }

// routerQueues has the bits of RouterQueueFull.
const routerQueues uint32 = 1<<6 - 1

// Bits of AddrChannel: faults of a link's receiver or transmitter. They explain the link's own health in the DNP word,
// and do not make the DNP core sick.
const (
	ChannelCRC       uint32 = 1 << iota // frames with a bad CRC-32
	ChannelMAC                          // frames with a good CRC and a bad MAC: an attack, never a sick link
	ChannelMalformed                    // unreadable frames
	ChannelGap                          // gaps in the authenticated sequence
	ChannelReplay                       // repeated frames
	ChannelHandshake                    // the neighbour reports that it does not hear us
	ChannelSilence                      // no authentic frame within the timeout
	ChannelSend                         // the kernel refused to send
)

// Bits of AddrRDMA. There is no RDMA engine here; the mailbox moves data between the DNP and its host's memory.
const (
	RDMAMailboxFull uint32 = 1 << iota // messages for the host were dropped because its mailbox was full
	RDMAMailboxBad                     // messages from the host were unreadable
	RDMASelfTest                       // the self-test finds that the mailbox loses or alters messages

	RDMAKnown = RDMAMailboxFull | RDMAMailboxBad | RDMASelfTest
)

// Bits of AddrEngine: the DNP half's own machinery.
const (
	EngineRegisterFile uint32 = 1 << iota // the register file could not be written or failed its check
	EngineRegisterBad                     // the host's word was corrupt
	EngineLate                            // the DNP half runs later than its periods allow
	EngineSensor                          // a sensor did not answer
	EngineRecovered                       // an internal error was caught and survived
	EngineSelfTest                        // the self-test finds a faulty link, register, report or bulk path
	EngineRestarted                       // the DNP half was restarted, and has not passed its self-test yet
	EngineFatal                           // the DNP half cannot use its own registers: it can neither hear its host nor report to it

	EngineKnown = EngineRegisterFile | EngineRegisterBad | EngineLate | EngineSensor | EngineRecovered | EngineSelfTest | EngineRestarted |
		EngineFatal
)

// CoreHealth returns the DNP core's health by the exception registers of the core: "we consider sick a DNP that has
// raised an exception" (§IV-B). It excludes the channels' registers, because a link has a health of its own. It also
// excludes RouterNoRoute, RouterHopsExceeded, RouterProtocol and RouterQueueFull: a dead destination is no fault of the
// nodes on the way, and a neighbour that sends too much, or false numbers of hops, is not this node's fault. And it
// excludes EngineLate: a node without processor time is starved, and not sick.
// EngineFatal makes the core broken: the paper leaves the values above sick open.
func CoreHealth(router0, router1, rdma, engine uint32) Health {
	if engine&EngineFatal != 0 {
		return HealthBroken
	}
	router0 &^= RouterNoRoute | RouterHopsExceeded | RouterProtocol
	if router0|router1&^routerQueues|rdma|engine&^EngineLate != 0 {
		return HealthSick
	}
	return HealthNormal
}
