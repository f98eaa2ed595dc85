package get

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
)

// momentForms describes the formats of --at and --since.
const momentForms = `"15:04" or "15:04:05" of the last 24 hours, "2006-01-02T15:04:05Z" or how long ago, such as "10m"`

// moment parses the time that a flag gives, by default in the terminal's time zone.
func moment(a *command.App, flag, text string) (time.Time, error) {
	now := a.Env.Now()
	at, err := time.Parse(time.RFC3339, text)
	if d, derr := time.ParseDuration(text); derr == nil {
		at, err = now.Add(-d), nil
	}
	for _, form := range []string{"15:04", "15:04:05"} {
		if t, terr := time.ParseInLocation(form, text, a.Env.Location); terr == nil {
			n := now.In(a.Env.Location)
			if at, err = time.Date(n.Year(), n.Month(), n.Day(), t.Hour(), t.Minute(), t.Second(), 0, a.Env.Location), nil; at.After(now) {
				at = at.AddDate(0, 0, -1)
			}
		}
	}
	switch {
	case err != nil:
		return at, command.Usagef("%s %q: want %s", flag, text, momentForms)
	case at.After(now):
		return at, command.Usagef("%s %q: that is yet to come: want %s", flag, text, momentForms)
	}
	return at, nil
}

// rewound resets nodes and links to their state at a given time, by the kept events. The events are read last, so that
// no change is missed in between.
func rewound(a *command.App, ctx context.Context, s command.Session, at time.Time, nodes *lofamov1.ListNodesResponse,
	links *lofamov1.ListLinksResponse) error {
	resp, err := s.AllEvents(ctx, &lofamov1.ListEventsRequest{AfterRevision: 1}) // all that are kept, oldest first
	if err != nil {
		return err
	}
	events := resp.GetEvents()
	if len(events) == 0 || resp.GetOldestRevision() > 1 && events[0].GetTime().AsTime().After(at) {
		since := "none are"
		if len(events) > 0 {
			since = "they are since " + a.Clock(events[0].GetTime())
		}
		return fmt.Errorf("changes are not kept as far back as %s: %s", a.Clock(timestamppb.New(at)), since)
	}
	rewind(events, at, nodes, links)
	return nil
}

// rewind undoes every change after a time: events are all of them up to now, oldest first. Data that events lack is
// left out: evidence, ages, and whether a node was inferred dead or unreachable. Coordinates and names stay those of
// now.
func rewind(events []*lofamov1.Event, at time.Time, nodes *lofamov1.ListNodesResponse, links *lofamov1.ListLinksResponse) {
	byPlace, byID, ends := map[string]*lofamov1.Node{}, map[string]*lofamov1.Node{}, map[string]*lofamov1.Link{}
	for _, n := range nodes.GetNodes() {
		byID[n.GetId()] = n
		if n.GetCoord() != "" { // a spare has none
			byPlace[n.GetCoord()] = n
		}
		n.Inferred, n.Unreachable, n.SingleWitness, n.Age, n.Groups, n.Warnings, n.Restarting = false, false, false, nil, nil, nil, nil
		n.Starved, n.Stopped = nil, nil
		for _, c := range n.GetComponents() {
			c.Evidence = nil
		}
	}
	for _, l := range links.GetLinks() {
		ends[l.GetCoord()+"/"+l.GetDirection()] = l
	}
	i := len(events) - 1
	for ; i >= 0 && events[i].GetTime().AsTime().After(at); i-- {
		e := events[i]
		n := byPlace[e.GetCoord()]
		switch e.GetKind() {
		case lofamov1.EventKind_COMPONENT_CHANGED:
			if e.GetFrom() != lofamov1.State_STATE_UNSPECIFIED {
				become(n, ends, e, e.GetFrom())
			}
		case lofamov1.EventKind_MAINTENANCE_CHANGED: // as it was before: under the mark that this ended, or none
			if n := byID[e.GetNode()]; n != nil {
				if n.Maintenance = nil; e.GetEnded() {
					n.Maintenance = proto.CloneOf(e.GetMaintenance())
				}
			}
		default:
		}
	}
	// places of nodes whose newest change before that time was found, and ids of those whose mark was
	told, marked := map[string]bool{}, map[string]bool{}
	for ; i >= 0; i-- {
		e := events[i]
		if n := byID[e.GetNode()]; n != nil && e.GetKind() == lofamov1.EventKind_MAINTENANCE_CHANGED && !marked[n.GetId()] {
			marked[n.GetId()] = true
			if n.Maintenance = nil; !e.GetEnded() { // a later event may have changed a mark that already existed
				n.Maintenance = proto.CloneOf(e.GetMaintenance())
			}
		}
		n := byPlace[e.GetCoord()]
		if n == nil || e.GetKind() != lofamov1.EventKind_COMPONENT_CHANGED || e.GetComponent() != "node" || told[e.GetCoord()] ||
			n.GetState() != e.GetTo() {
			continue
		}
		if n.Cause == lofamov1.Cause_CAUSE_UNSPECIFIED {
			n.Cause = e.GetCause()
		}
		if e.GetFrom() != e.GetTo() {
			n.Since = e.GetTime()
			told[e.GetCoord()] = true
		}
	}
}

// become sets the state of an event's subject; n is the node at its coordinates, or nil if that is gone.
func become(n *lofamov1.Node, ends map[string]*lofamov1.Link, e *lofamov1.Event, state lofamov1.State) {
	if n == nil {
		return
	}
	if e.GetComponent() == "node" {
		n.State, n.Cause, n.Since = state, lofamov1.Cause_CAUSE_UNSPECIFIED, nil
		return
	}
	for _, c := range n.GetComponents() {
		if c.GetName() == e.GetComponent() {
			c.State = state
		}
	}
	if dir, ok := strings.CutPrefix(e.GetComponent(), "link/"); ok && ends[e.GetCoord()+"/"+dir] != nil {
		ends[e.GetCoord()+"/"+dir].State = state
	}
}
