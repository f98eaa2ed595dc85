package regfile

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Area is a meaningful part of a register file.
type Area struct {
	Name   string
	Offset int // in the file, in bytes
	Size   int // in bytes
}

// Areas lists all meaningful parts of a register file, for tools and the injection campaign: words, and separately
// their guards.
func Areas() []Area {
	out := []Area{
		{"magic", pageSize + offMagic, 8},
		{"doorbells", pageSize + offDoorbells, 8},
		{"counters", pageSize + offCounters, 4 * NumCounters},
	}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		out = append(out, Area{"epoch " + h.String(), pageSize + offEpochs + epochStride*(int(h)-1), epochStride})
	}
	add := func(name string, c cell) {
		out = append(out, Area{name, c.word, 4}, Area{name + ", guards", c.guards, guardStride})
	}
	for _, a := range guardedRegisters {
		c, _ := registerCell(a)
		add("register "+a.String(), c)
	}
	for i := range numExtWords {
		add(extName(i), extCell(i))
	}
	return out
}

func extName(i int) string {
	switch {
	case i < extNeighbourHost:
		return "link detail " + grid.Directions()[i-extLinkDetail].String()
	case i < extSensor:
		return "neighbour host " + grid.Directions()[i-extNeighbourHost].String()
	case i < extSensor+3:
		return fmt.Sprintf("sensor value %d", i-extSensor)
	case i >= extPeer:
		return "peer " + grid.Directions()[i-extPeer].String()
	default:
		return fmt.Sprintf("extension word %d", i)
	}
}
