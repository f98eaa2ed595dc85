package cluster

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Kind is a kind of fault that can be injected.
type Kind uint8

// The kinds.
const (
	KillHost     Kind = iota + 1 // SIGKILL to the host half
	KillDNP                      // SIGKILL to the DNP half
	KillNode                     // SIGKILL to both halves
	HangHost                     // SIGSTOP to the host half
	HangDNP                      // SIGSTOP to the DNP half
	HangNode                     // SIGSTOP to both halves: others see the same as when the node's kernel dies
	CutService                   // the host half's sockets on the service network drop everything, both ways
	CutInterface                 // one service interface's sockets drop everything, both ways; gossip is on number 0
	CutLink                      // this end of the link drops everything: both ways, or only frames that it sends
	CorruptLink                  // this end of the link flips bits in a share of the frames that it receives
	SensorValue                  // a sensor shows another value
)

// kindInfo describes a kind for the command line.
type kindInfo struct {
	kind Kind
	name string
	args string // after the name
	help string
}

func kinds() []kindInfo {
	return []kindInfo{
		{KillHost, "kill-host", "", "kill -9 the host half"},
		{KillDNP, "kill-dnp", "", "kill -9 the DNP half"},
		{KillNode, "kill-node", "", "kill -9 both halves"},
		{HangHost, "hang-host", "", "stop the host half (SIGSTOP)"},
		{HangDNP, "hang-dnp", "", "stop the DNP half (SIGSTOP)"},
		{HangNode, "hang-node", "", "stop both halves (SIGSTOP): others see the same as when the node's kernel dies"},
		{CutService, "cut-service", "", "cut the node off the service network, both ways"},
		{CutInterface, "cut-interface", "NUMBER", "cut one service interface of the node, both ways: 0 (with gossip) or, where 'up " +
			"--service-interfaces 2' made it, 1"},
		{CutLink, "cut-link", "DIR", "cut the link in direction DIR (X+ X- Y+ Y- Z+ Z-) at this end, both ways; with --one-way only what this " +
			"node sends"},
		{CorruptLink, "corrupt-link", "DIR RATE", "flip bits in a share RATE (above 0, up to 1) of the frames that this node receives from " +
			"direction DIR"},
		{SensorValue, "sensor", "NAME VALUE", "make a sensor show another value"},
	}
}

// KindNames lists the names of the faults.
func KindNames() []string {
	var out []string
	for _, k := range kinds() {
		out = append(out, k.name)
	}
	return out
}

// FaultHelp describes every fault and every sensor in lines of text.
func FaultHelp() string {
	var b strings.Builder
	for _, k := range kinds() {
		fmt.Fprintf(&b, "  %-22s %s\n", strings.TrimSpace(k.name+" "+k.args), k.help)
	}
	b.WriteString("\nSensors:\n")
	for _, s := range sensorInputs() {
		fmt.Fprintf(&b, "  %-22s %v to %v (%s)\n", s.name, s.min, s.max, s.unit)
	}
	return b.String()
}

// String returns the fault's name on the command line.
func (k Kind) String() string {
	for _, i := range kinds() {
		if i.kind == k {
			return i.name
		}
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Fault is one fault to inject into a node.
type Fault struct {
	Kind   Kind
	Number int            // CutInterface: of the service interface, from 0
	Dir    grid.Direction // CutLink, CorruptLink
	OneWay bool           // CutLink: block only frames that this node sends; the peer detects silence
	Rate   float64        // CorruptLink: share of received frames, above 0, up to 1
	Sensor string         // SensorValue
	Value  float64        // SensorValue, in the sensor's unit
}

// String returns the fault in the command line's syntax.
func (f Fault) String() string {
	switch f.Kind {
	case CutLink:
		if f.OneWay {
			return fmt.Sprintf("cut-link %s --one-way", f.Dir)
		}
		return fmt.Sprintf("cut-link %s", f.Dir)
	case CutInterface:
		return fmt.Sprintf("cut-interface %d", f.Number)
	case CorruptLink:
		return fmt.Sprintf("corrupt-link %s %v", f.Dir, f.Rate)
	case SensorValue:
		return fmt.Sprintf("sensor %s %v", f.Sensor, f.Value)
	default:
		return f.Kind.String()
	}
}

// ParseFault parses the command line's syntax of a fault: its name and arguments.
func ParseFault(args []string, oneWay bool) (Fault, error) {
	if len(args) == 0 {
		return Fault{}, fmt.Errorf("no fault given: want one of %s", strings.Join(KindNames(), ", "))
	}
	for _, k := range kinds() {
		if k.name != args[0] {
			continue
		}
		if want := len(strings.Fields(k.args)); len(args)-1 != want {
			return Fault{}, fmt.Errorf("fault %s: %d arguments given: want %s", k.name, len(args)-1, strings.TrimSpace(k.name+" "+k.args))
		}
		if oneWay && k.kind != CutLink {
			return Fault{}, fmt.Errorf("fault %s: --one-way is for cut-link only", k.name)
		}
		f, err := parseArguments(k.kind, args[1:])
		f.OneWay = oneWay
		return f, err
	}
	return Fault{}, fmt.Errorf("fault %q: want one of %s, or heal", args[0], strings.Join(KindNames(), ", "))
}

func parseArguments(kind Kind, args []string) (Fault, error) {
	f := Fault{Kind: kind}
	var err error
	switch kind {
	case CutLink, CorruptLink:
		if f.Dir, err = grid.ParseDirection(strings.ToUpper(args[0])); err != nil {
			return Fault{}, err
		}
		if kind == CorruptLink {
			if f.Rate, err = strconv.ParseFloat(args[1], 64); err != nil {
				return Fault{}, fmt.Errorf("fault corrupt-link: rate %q: want a number above 0, up to 1", args[1])
			}
		}
	case CutInterface:
		if f.Number, err = strconv.Atoi(args[0]); err != nil {
			return Fault{}, fmt.Errorf("fault cut-interface: number %q: want a service interface's, 0 or 1", args[0])
		}
	case SensorValue:
		f.Sensor = args[0]
		if f.Value, err = strconv.ParseFloat(args[1], 64); err != nil {
			return Fault{}, fmt.Errorf("fault sensor %s: value %q: want a number", args[0], args[1])
		}
	default:
	}
	return f, f.validate()
}

func (f Fault) validate() error {
	switch f.Kind {
	case KillHost, KillDNP, KillNode, HangHost, HangDNP, HangNode, CutService:
		return nil
	case CutInterface:
		if f.Number < 0 || f.Number >= MaxServiceInterfaces {
			return fmt.Errorf("fault cut-interface: number %d: want 0 or 1", f.Number)
		}
		return nil
	case CutLink, CorruptLink:
		if !f.Dir.Valid() {
			return fmt.Errorf("fault %s: direction %s: want one of X+ X- Y+ Y- Z+ Z-", f.Kind, f.Dir)
		}
		// Written so that NaN is refused too.
		if f.Kind == CorruptLink && !(f.Rate > 0 && f.Rate <= 1) {
			return fmt.Errorf("fault corrupt-link: rate %v: want above 0, up to 1", f.Rate)
		}
		return nil
	case SensorValue:
		s, err := findSensor(f.Sensor)
		if err != nil {
			return err
		}
		return s.check(f.Value)
	default:
		return fmt.Errorf("fault %s: unknown", f.Kind)
	}
}

// Check returns an error if the fault does not fit a torus of these sizes.
func (f Fault) Check(d grid.Dims) error {
	if err := f.validate(); err != nil {
		return err
	}
	if f.Dir.Valid() && !d.HasLink(f.Dir) {
		return fmt.Errorf("fault %s: a %s torus has no link in direction %s: its size there is 1", f.Kind, d, f.Dir)
	}
	return nil
}

// halves returns the halves that a kill or hang concerns.
func (f Fault) halves() []fault.Half {
	switch f.Kind {
	case KillHost, HangHost:
		return []fault.Half{fault.HalfHost}
	case KillDNP, HangDNP:
		return []fault.Half{fault.HalfDNP}
	case KillNode, HangNode:
		return []fault.Half{fault.HalfHost, fault.HalfDNP}
	default:
		return nil
	}
}
