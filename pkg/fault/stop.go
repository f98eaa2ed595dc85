package fault

// Stop is a notice about a planned stop of the origin's whole node. Only the node itself can send it, because the notice
// applies to the node that signed it. Zero: no notice.
type Stop uint8

// The notices.
const (
	StopDaemon   Stop = iota + 1 // the agent's daemon was told to end; the machine may live on
	StopShutdown                 // the machine shuts down: power-off or halt
	StopReboot                   // the machine reboots
	StopOver                     // the node is back: its halves have passed their self-tests
	StopLeave                    // the node leaves the cluster for good
)

// String returns the reason in words: stop, shutdown, reboot, over, leave; "" without a notice.
func (s Stop) String() string {
	if s == 0 {
		return ""
	}
	return stopNames.str("Stop", uint8(s))
}

// Valid reports whether s is one of the notices.
func (s Stop) Valid() bool { return s >= StopDaemon && s <= StopLeave }

// Begins reports whether s announces a stop.
func (s Stop) Begins() bool { return s.Valid() && s != StopOver }

// ParseStop parses a notice's name as String prints it.
func ParseStop(name string) (Stop, error) {
	v, err := stopNames.parse("stop", name)
	return Stop(v), err
}
