package watchdog

// The exception registers (Table VI). The paper gives their masks and says that "each of this
// faults has a related Exception Register", naming an over-threshold number of hops and the RDMA
// engine as examples (§IV-B); it does not give the bits. Below is what raises them in this project.
// They are levels, not latches: the DNP half clears a bit when the condition has gone.

// Bits of AddrRouter0: why the router refused messages.
const (
	RouterHopsExceeded uint32 = 1 << iota // a message travelled more than AddrMaxHops: the paper's own example
	RouterNoRoute                         // no live link leads on towards the destination: the links' fault, not the core's
	RouterMalformed                       // a message that the router could not read came on an authentic frame
	RouterCacheFull                       // the memory of messages already forwarded overflowed
	RouterSelfTest                        // the self-test finds that relayed messages do not come through as they went

	// Channel protocol checks (seed 003 §5.2.1.2): a neighbour did what no loss, delay or restart makes.
	RouterProtocolAck     // acknowledged messages that were never sent
	RouterProtocolOrder   // acknowledged frames that were never sent
	RouterProtocolStream  // counted its messages anew without a restart
	RouterProtocolHops    // sent a message that made no hop, or more than it may
	RouterProtocolOutside // sent a message for a place outside the torus
	RouterProtocolBack    // sent a message of a flood back to where it had come from
	RouterProtocolExpress // sent a broadcast, barrier or data that makes no sense

	RouterProtocol = RouterProtocolAck | RouterProtocolOrder | RouterProtocolStream | RouterProtocolHops | RouterProtocolOutside | RouterProtocolBack |
		RouterProtocolExpress
	RouterKnown = RouterHopsExceeded | RouterNoRoute | RouterMalformed | RouterCacheFull | RouterSelfTest | RouterProtocol
)

// RouterQueueFull returns the bit of AddrRouter1 that says that messages for one direction were
// dropped, their queue being full. index is grid.Direction.Index; the bits stand in the order of
// Table III, Z- lowest.
func RouterQueueFull(index int) uint32 { return 1 << (5 - index) }

// Bits of AddrChannel: what is wrong with a link's receiver or transmitter. They explain the link's
// own health in the DNP word, and do not make the DNP core sick.
const (
	ChannelCRC       uint32 = 1 << iota // frames with a bad CRC-32
	ChannelMAC                          // frames with a good CRC and a bad MAC: an attack, never a sick link
	ChannelMalformed                    // frames that cannot be read
	ChannelGap                          // gaps in the authenticated sequence
	ChannelReplay                       // frames that came before
	ChannelHandshake                    // the neighbour says that it does not hear us
	ChannelSilence                      // nothing authentic heard within the time-out
	ChannelSend                         // the kernel refused to send
)

// Bits of AddrRDMA. There is no RDMA engine here; what moves data between the DNP and its host's
// memory is the mailbox.
const (
	RDMAMailboxFull uint32 = 1 << iota // messages for the host were dropped, its mailbox being full
	RDMAMailboxBad                     // messages from the host could not be read
	RDMASelfTest                       // the self-test finds that the mailbox does not carry what it is given

	RDMAKnown = RDMAMailboxFull | RDMAMailboxBad | RDMASelfTest
)

// Bits of AddrEngine: the DNP half's own machinery.
const (
	EngineRegisterFile uint32 = 1 << iota // the register file could not be written or failed its check
	EngineRegisterBad                     // the host's word was found corrupt
	EngineLate                            // the DNP half runs later than its periods allow
	EngineSensor                          // a sensor did not answer
	EngineRecovered                       // an internal error was caught and survived
	EngineSelfTest                        // the self-test finds a link, the registers, the reports or the bulk path wrong
	EngineRestarted                       // the DNP half was restarted, and has not passed its self-test yet

	EngineKnown = EngineRegisterFile | EngineRegisterBad | EngineLate | EngineSensor | EngineRecovered | EngineSelfTest | EngineRestarted
)

// CoreHealth is the DNP core's health by the exception registers of the core: "we consider sick a
// DNP that has raised an exception" (§IV-B). The channels' registers, RouterNoRoute and RouterProtocol are left out, since a link
// has a health of its own, a dead destination is nobody's fault on the way to it, and what a neighbour does is not this node's.
func CoreHealth(router0, router1, rdma, engine uint32) Health {
	if router0&^(RouterNoRoute|RouterProtocol)|router1|rdma|engine != 0 {
		return HealthSick
	}
	return HealthNormal
}
