package federation

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The keys, below the store's prefix.
const (
	prefix  = "regions/"
	keyHead = "head"
)

// head is the stored state of a region beside its documents.
type head struct {
	Position
	// Cut says that the region is cut off. Since is the time of the last change of Cut (supervisor's wall clock).
	Cut   bool      `json:"cut"`
	Since time.Time `json:"since,omitzero"`
}

func key(name, below string) string { return store.Prefix + prefix + name + "/" + below }

func (h head) kv(name string) (store.KV, error) {
	b, err := json.Marshal(h)
	if err != nil {
		return store.KV{}, fmt.Errorf("encode head of region %s: %w", name, err)
	}
	return store.KV{Key: key(name, keyHead), Value: b}, nil
}

func (h head) state() lofamov1.State {
	if h.Cut {
		return lofamov1.State_UNKNOWN
	}
	return lofamov1.State_NORMAL
}

// stored is all that the parent's store has.
type stored struct {
	revision uint64
	heads    map[string]head
	nodes    []*lofamov1.Node // with their regions
	above    []document       // group faults and warnings
}

// read decodes the entries below prefix.
func read(entries []store.Entry, revision uint64) (stored, error) {
	out := stored{revision: revision, heads: make(map[string]head)}
	for _, e := range entries {
		name, below, _ := strings.Cut(e.Key, "/")
		switch {
		case below == keyHead:
			var h head
			if err := json.Unmarshal(e.Value, &h); err != nil {
				return stored{}, fmt.Errorf("read head of region %s: %w", name, err)
			}
			out.heads[name] = h
		case strings.HasPrefix(below, KindNodes):
			n, err := decodeNode(name, e.Value)
			if err != nil {
				return stored{}, err
			}
			n.Revision = e.Revision
			out.nodes = append(out.nodes, n)
		case strings.HasPrefix(below, KindGroups), strings.HasPrefix(below, KindWarnings):
			out.above = append(out.above, document{region: name, revision: e.Revision, Document: &lofamov1.Document{Key: below, Value: e.Value}})
		}
	}
	return out, nil
}

func decodeNode(name string, b []byte) (*lofamov1.Node, error) {
	n := new(lofamov1.Node)
	if err := proto.Unmarshal(b, n); err != nil {
		return nil, fmt.Errorf("read a node of region %s: %w", name, err)
	}
	n.Region = name
	return n, nil
}

// cutOff returns a node's entry for display while its region is cut off: UNKNOWN. The stored entry stays.
func cutOff(e view.Entry, since time.Time) view.Entry {
	st := e.Status
	st.State, st.Cause, st.Since, st.SingleWitness = fault.Unknown, fault.CauseNone, since, false
	st.Rule = awareness.RuleCutOff
	st.Components = append(st.Components[:0:0], st.Components...)
	for i := range st.Components {
		c := &st.Components[i]
		c.State, c.Cause, c.Since, c.Evidence, c.Rule = fault.Unknown, fault.CauseNone, since, nil, awareness.RuleCutOff
	}
	e.Status = st
	return e
}
