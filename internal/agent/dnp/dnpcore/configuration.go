package dnpcore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/express"
)

// The start-up configuration (seed 003 §4.4.1) tells every node of the torus about the torus as a whole. The
// supervisors give it to one node, in one or more signed envelopes, and that node broadcasts them as one datum. All
// other nodes verify it, apply it, and give it to any node that requests it. No node keeps it on disk, because its
// neighbours have it. The channel mask, which must outlive them all, is stored as a mask order of its own.

const (
	configurationTopic                     = express.TopicMask
	configurationPriority express.Priority = 6
)

// configuredWait is how long a half without a mask order waits for something better than the mask in its configuration:
// an order takes a second, and so does a new configuration.
const configuredWait = 3 * time.Second

// Configuration is the known state of the torus as a whole. The zero value means that nothing is known.
type Configuration struct {
	Number uint64
	Delay  time.Duration // Network Delay, from the map of the supervisors
	Absent []int         // ranks of places that need not answer, ascending
	masks  map[int]chanmask.Mask
	all    bool // all channels are usable at the nodes not in masks
}

// configurations holds the machine's configuration state.
type configurations struct {
	known Configuration
	// unheeded is the time since which the known configuration has a mask for this node that waits because the node
	// holds no mask order (see configuredMask); zero: there is none.
	unheeded time.Time
	// The parts that this node has received for its broadcast, until all are there.
	number    uint64
	envelopes [][]byte
	parts     []*lofamov1.TorusConfiguration
}

// DataOpened is the answer to Output.Judge: the contents of the envelopes, all signed by a supervisor; nil if they hold
// anything else.
type DataOpened struct {
	ID    express.DataID
	Parts []*lofamov1.TorusConfiguration
}

func (DataOpened) dnpEvent() {}

// appendEnvelope and splitEnvelopes define the layout of the datum: for each envelope its length, 16 bits big endian,
// and its bytes.
func appendEnvelope(b, envelope []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(envelope))), envelope...)
}

var errEnvelopes = errors.New("it is no list of envelopes")

func splitEnvelopes(b []byte) (out [][]byte, err error) {
	for len(b) > 0 {
		if len(b) < 2 {
			return nil, errEnvelopes
		}
		n := int(binary.BigEndian.Uint16(b))
		if b = b[2:]; n == 0 || n > len(b) || n > servicenet.MaxDatagram || len(out) == servicenet.MaxConfigurationParts {
			return nil, errEnvelopes
		}
		out, b = append(out, b[:n]), b[n:]
	}
	return out, nil
}

// onTorusConfiguration takes a part of a configuration that this node is to broadcast. Once all parts are there it
// always answers, even to a repeated request, since the repetition shows that the last answer was lost.
func (m *Machine) onTorusConfiguration(now time.Time, c *lofamov1.TorusConfiguration, envelope []byte) {
	k := &m.configuration
	if c.GetNumber() > k.known.Number {
		if c.GetNumber() < k.number {
			return // older than the one being assembled
		}
		if n := int(c.GetParts()); c.GetNumber() > k.number || n != len(k.parts) {
			k.number, k.envelopes, k.parts = c.GetNumber(), make([][]byte, n), make([]*lofamov1.TorusConfiguration, n)
		}
		k.envelopes[c.GetPart()], k.parts[c.GetPart()] = slices.Clone(envelope), c
		var body []byte
		for _, e := range k.envelopes {
			if e == nil {
				return
			}
			body = appendEnvelope(body, e)
		}
		m.broadcastConfiguration(now, body)
	}
	m.answerOrder(0, &lofamov1.Message{Body: &lofamov1.Message_ConfigurationStatus{ConfigurationStatus: &lofamov1.ConfigurationStatus{
		Node: string(m.self), Epoch: uint64(m.Epoch()), Number: k.known.Number,
	}}})
}

func (m *Machine) broadcastConfiguration(now time.Time, body []byte) {
	k := &m.configuration
	c, err := m.mergeConfiguration(k.number, k.parts)
	k.number, k.envelopes, k.parts = 0, nil, nil
	if err == nil {
		err = m.stepData(now, express.Publish{Topic: configurationTopic, Priority: configurationPriority, Number: c.Number, Body: body})
	}
	if err != nil {
		m.note(NoteRefused, "configuration of the torus: %v", err)
		return
	}
	m.takeConfiguration(now, c)
}

// onDataOpened judges the contents of a received datum.
func (m *Machine) onDataOpened(now time.Time, ev DataOpened) {
	c, err := m.mergeConfiguration(ev.ID.Number, ev.Parts)
	if errors.Is(err, errOtherTorus) { // this half may follow to that torus soon
		m.note(NoteRefused, "data %s: %v", ev.ID, err)
		_ = m.stepData(now, express.Judged{ID: ev.ID, For: otherTorusFor})
		return
	}
	if err != nil {
		m.refuseData(now, ev.ID, err)
		return
	}
	_ = m.stepData(now, express.Judged{ID: ev.ID, Good: true})
	if c.Number > m.configuration.known.Number {
		m.takeConfiguration(now, c)
	}
}

// errOtherTorus refuses a configuration of another torus, for otherTorusFor: in a torus that changes, the nodes follow
// one after the other.
var errOtherTorus = errors.New("other torus")

const otherTorusFor = 5 * time.Second

// mergeConfiguration merges the parts. Package servicenet has checked each part by itself.
func (m *Machine) mergeConfiguration(number uint64, parts []*lofamov1.TorusConfiguration) (Configuration, error) {
	if len(parts) == 0 {
		return Configuration{}, errors.New("it is not signed by a supervisor, or no configuration")
	}
	dims := m.cfg.Topo.Dims
	c := Configuration{Number: number, Delay: time.Duration(parts[0].GetDelayUs()) * time.Microsecond, masks: map[int]chanmask.Mask{}}
	for i, p := range parts {
		switch {
		case p.GetNumber() != number || int(p.GetPart()) != i || int(p.GetParts()) != len(parts) || p.GetDelayUs() != parts[0].GetDelayUs():
			return Configuration{}, fmt.Errorf("part %d of %d is of another one: number %d, part %d of %d", i, len(parts), p.GetNumber(),
				p.GetPart(), p.GetParts())
		case p.GetDims() != dims.Short():
			return Configuration{}, fmt.Errorf("%w %s: this node has %s", errOtherTorus, p.GetDims(), dims.Short())
		}
		for _, rank := range p.GetAbsent() {
			if n := len(c.Absent); int(rank) >= dims.Places() || n > 0 && int(rank) <= c.Absent[n-1] {
				return Configuration{}, fmt.Errorf("absent: given %d: want ranks below %d, ascending", rank, dims.Places())
			}
			c.Absent = append(c.Absent, int(rank))
		}
		for _, t := range p.GetMasks() {
			if int(t.GetRank()) >= dims.Places() {
				return Configuration{}, fmt.Errorf("masks: given rank %d: want one below %d", t.GetRank(), dims.Places())
			}
			c.masks[int(t.GetRank())] = chanmask.Mask(t.GetMask())
		}
	}
	if len(c.Absent) > servicenet.MaxConfigurationAbsent || len(c.masks) > servicenet.MaxConfigurationMasks {
		return Configuration{}, fmt.Errorf("%d places are absent, %d nodes have masks: want at most %d and %d", len(c.Absent),
			len(c.masks), servicenet.MaxConfigurationAbsent, servicenet.MaxConfigurationMasks)
	}
	c.all = len(c.masks) < servicenet.MaxConfigurationMasks
	return c, nil
}

// takeConfiguration is the only writer of the known configuration.
func (m *Machine) takeConfiguration(now time.Time, c Configuration) {
	m.configuration.known, m.configuration.unheeded = c, time.Time{}
	m.note(NoteConfig, "configuration %d of the torus: network delay %s, %d places absent, %d nodes with masks", c.Number, c.Delay,
		len(c.Absent), len(c.masks))
	m.configuredMask(now)
}

// tickConfiguration applies the configured mask once this half has waited long enough.
func (m *Machine) tickConfiguration(now time.Time) {
	if !m.configuration.unheeded.IsZero() {
		m.configuredMask(now)
	}
}

// configuredMask applies the mask that the configuration has for this node. It is equivalent to a MaskOrder with the
// same number, since both are revisions of one store. If it changes nothing, only the number is remembered, and not on
// disk; the supervisors, who would find it new, order by the state that this node reports.
//
// A half without a mask order has no number by which to recognise a copy of an old one, and the configuration cannot
// name its boot epoch, because it is for all nodes. So the half asks the supervisors, whose order names the epoch. It
// applies the configured mask only if neither an order nor a newer configuration arrives; if a leader reaches any node,
// all nodes get the newer configuration.
func (m *Machine) configuredMask(now time.Time) {
	k := &m.configuration
	number := k.known.Number
	mask, named := k.known.masks[m.cfg.Topo.Dims.Rank(m.cfg.Topo.Coord)]
	if !named {
		mask = chanmask.All
	}
	if !named && !k.known.all {
		return
	}
	next, verdict := m.mask.State.Order(number, mask)
	first := k.unheeded.IsZero()
	waits := m.mask.State.Number == 0 && mask != chanmask.All && (first || now.Sub(k.unheeded) < configuredWait)
	if waits && first {
		m.note(NoteConfig, "channel mask %s of configuration %d waits for the supervisors' own word: this half holds none", mask, number)
		k.unheeded = now
		m.mask.Tell(now)
		m.tickMask(now)
	}
	if !waits {
		k.unheeded = time.Time{}
	}
	switch {
	case waits:
	case verdict != chanmask.Taken || m.mask.State.Number == 0 && mask == chanmask.All:
	case mask == m.mask.State.Ordered:
		m.mask.State = next
		m.out.SaveMask = m.out.SaveMask || m.mask.Storing()
	default:
		m.mask.Lost = false
		m.changeMask(now, next)
		m.mask.Tell(now)
		m.tickMask(now)
	}
}

// Configuration returns the configuration that the supervisors sent to all nodes of the torus.
func (m *Machine) Configuration() Configuration { return m.configuration.known }

// networkDelay returns the Network Delay (seed 003 §4.1): from the supervisors' map, or a margin if that is not known.
func (m *Machine) networkDelay() time.Duration {
	if d := m.configuration.known.Delay; d > 0 {
		return d
	}
	return marginDelay(m.cfg.Topo.Dims, m.cfg.Periods.LinkPeriod)
}
