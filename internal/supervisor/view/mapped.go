package view

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// KindMapped is the kind of evidence for a mapper's finding. It changes no state.
const KindMapped = "MAPPED"

// Mapped is a node's finding on another node for which the supervisors have no evidence of their own (mapping by
// delegation, seed 003 §5.2.3.2).
type Mapped struct {
	By        fault.NodeID // the mapper
	At        time.Time    // time of the finding
	DNP, Host chanmask.Knowledge
	Good, Bad uint8         // its links, bit 0 X+ to bit 5 Z-
	RoundTrip time.Duration // 0: none
}

// String is one sentence, of at most fault.MaxDetail bytes.
func (m Mapped) String() string {
	if m.DNP != chanmask.Good {
		s := fmt.Sprintf("%s did not reach it through the torus", m.By)
		if heard := directions(m.Good); heard != "" {
			return fault.Cut(s+", though neighbours hear it by its links "+heard, fault.MaxDetail)
		}
		return fault.Cut(s, fault.MaxDetail)
	}
	host := map[chanmask.Knowledge]string{chanmask.Good: "and host half answer",
		chanmask.Bad: "answers, and has found its host half dead", chanmask.Unknown: "answers, host half does not"}
	s := fmt.Sprintf("reached by %s through the torus: DNP half %s", m.By, host[m.Host])
	if dead := directions(m.Bad); dead != "" {
		s += "; dead to it are its links " + dead
	}
	return fault.Cut(s, fault.MaxDetail)
}

// directions are the names of bits, 0 X+ to 5 Z-.
func directions(bits uint8) string {
	var out []string
	for _, d := range grid.Directions() {
		if bits>>d.Index()&1 == 1 {
			out = append(out, d.String())
		}
	}
	return strings.Join(out, " ")
}

// Evidence returns the finding on a component, or nil for none. Only the halves have findings.
func (m Mapped) Evidence(c fault.Component, now time.Time) *lofamov1.Evidence {
	k := m.DNP
	switch c {
	case fault.ComponentHost:
		k = m.Host
	case fault.ComponentDNP:
	default:
		return nil
	}
	state := map[chanmask.Knowledge]lofamov1.State{chanmask.Good: lofamov1.State_NORMAL, chanmask.Bad: lofamov1.State_FAILED,
		chanmask.Unknown: lofamov1.State_UNKNOWN}[k]
	return &lofamov1.Evidence{
		Kind: KindMapped, Observer: string(m.By) + "/" + fault.HalfDNP.String(), Path: lofamov1.Path(fault.PathTorus),
		Age: durationpb.New(max(0, now.Sub(m.At))), State: state, Detail: m.String(),
	}
}
