package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// incidentsChunk is the number of incidents in one page of a list after a watch that cannot resume.
const incidentsChunk = 500

// ListIncidents returns one page of incidents, the newest first.
func (c *Client) ListIncidents(ctx context.Context, req *lofamov1.ListIncidentsRequest) (*lofamov1.ListIncidentsResponse, error) {
	return call(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListIncidentsResponse, error) {
		return s.ListIncidents(ctx, req)
	})
}

// AllIncidents fetches all pages of ListIncidents, of chunk incidents each (0: one page), and joins them.
func (c *Client) AllIncidents(ctx context.Context, req *lofamov1.ListIncidentsRequest,
	chunk uint32) (*lofamov1.ListIncidentsResponse, error) {
	return pages(chunk,
		func(limit uint32, next string) (*lofamov1.ListIncidentsResponse, error) {
			req.Limit, req.Continue = limit, next
			return c.ListIncidents(ctx, req)
		},
		func(all, page *lofamov1.ListIncidentsResponse) {
			all.Incidents, all.Continue = append(all.Incidents, page.GetIncidents()...), ""
			all.Stale = all.GetStale() || page.GetStale()
			all.MissingRegions = append(all.MissingRegions, page.GetMissingRegions()...)
			slices.Sort(all.MissingRegions)
			all.MissingRegions = slices.Compact(all.MissingRegions)
		})
}

// GetIncident returns one incident. It fails with the gRPC code NotFound if there is none of that id.
func (c *Client) GetIncident(ctx context.Context, id string) (*lofamov1.Incident, error) {
	return call(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.Incident, error) {
		return s.GetIncident(ctx, &lofamov1.GetIncidentRequest{Id: id})
	})
}

// AcknowledgeIncident notes that the caller deals with an incident, with a note of at most 4,096 bytes ("" for none). It
// fails with the gRPC code Aborted if the incident is CLOSED.
func (c *Client) AcknowledgeIncident(ctx context.Context, id, note string) (*lofamov1.AcknowledgeIncidentResponse, error) {
	return change(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.AcknowledgeIncidentResponse, error) {
		return s.AcknowledgeIncident(ctx, &lofamov1.AcknowledgeIncidentRequest{Id: id, Note: note})
	})
}

// WatchIncidents calls each with the incidents that changed after req.AfterRevision (0: with all), then with those that
// change, until ctx ends or each returns an error, which WatchIncidents returns; nil for ErrStop.
//
// Each call gets the newest form of an incident; forms in between may be left out (WatchIncidentsResponse.skipped). If a
// supervisor fails, the watch resumes at another one, also at a parent of regions: the client then drops the incidents that
// the caller knows already. An incident that a parent forgets meanwhile is not named as gone. The watch fails with a
// *NoAnswerError only if no supervisor answers at the start.
//
// If an incident has changed during an outage and is no longer kept, and the watch began with AfterRevision 0, the client lists the
// incidents. It then calls each with the incidents that changed, and with the ids of the known incidents that are no longer kept, as
// gone. If the watch began with another revision, the client does not know the caller's incidents. The watch then fails with
// ErrCompacted and the gRPC code OutOfRange. It fails in the same way if the supervisors' store was replaced by one with an older
// revision. In both cases watch again with AfterRevision 0, and forget the incidents that do not come again.
func (c *Client) WatchIncidents(ctx context.Context, req *lofamov1.WatchIncidentsRequest,
	each func(*lofamov1.WatchIncidentsResponse) error) error {
	req = proto.CloneOf(req)
	begun, known := false, knownIncidents{states: req.GetStates(), revisions: make(map[string]uint64)}
	whole := req.GetAfterRevision() == 0 // known has all incidents that the caller knows
	for rounds := 0; ; rounds++ {
		err := c.watchOne(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
			stream, err := lofamov1.NewFaultSupervisorClient(conn).WatchIncidents(ctx, req)
			for err == nil {
				var resp *lofamov1.WatchIncidentsResponse
				if resp, err = stream.Recv(); err != nil {
					break
				}
				begun, rounds = true, 0
				if resp.GetRevision() == 0 { // of a parent
					known.update(resp)
					req.States = nil // a restarted watch also shows incidents that have left them
				} else if whole {
					known.note(resp)
				}
				if err := each(resp); err != nil {
					return finalError{err}
				}
				req.AfterRevision = max(req.GetAfterRevision(), resp.GetRevision())
			}
			return err
		})
		var final finalError
		var none *NoAnswerError
		if whole && begun && status.Code(err) == codes.OutOfRange && !errors.As(err, &final) {
			err = c.listAgain(ctx, req, err, &known, each)
		}
		switch {
		case errors.As(err, &final):
			if errors.Is(final.err, ErrStop) {
				return nil
			}
			return final.err
		case ctx.Err() != nil:
			return ctx.Err()
		case status.Code(err) == codes.OutOfRange:
			return compactedError{fmt.Sprintf("watch incidents after revision %d: %s", req.GetAfterRevision(), reason(err)), err}
		case err == nil:
		case !begun, !errors.As(err, &none) && !errors.Is(err, io.EOF) && status.Code(err) != codes.Canceled && !otherMayAnswer(err):
			return err
		}
		if err := pause(ctx, rounds); err != nil {
			return err
		}
	}
}

// listAgain lists the incidents when supervisors refuse to resume a watch. It gives the caller those that changed, and the ids of the known
// ones that are no longer kept, as gone. The watch goes on after the list. listAgain returns the refusal if the store was replaced.
func (c *Client) listAgain(ctx context.Context, req *lofamov1.WatchIncidentsRequest, refusal error, known *knownIncidents,
	each func(*lofamov1.WatchIncidentsResponse) error) error {
	list, err := c.AllIncidents(ctx, &lofamov1.ListIncidentsRequest{Node: req.GetNode()}, incidentsChunk)
	kept := list
	if err == nil && req.GetNode() != "" { // a kept incident may no longer concern the node
		kept, err = c.AllIncidents(ctx, &lofamov1.ListIncidentsRequest{}, incidentsChunk)
	}
	switch {
	case err != nil:
		return err
	case list.GetStale(), kept.GetStale(): // an incident that the list lacks may be one that it does not have yet
		return status.Error(codes.Unavailable, "the list of incidents is stale")
	case list.GetRevision() < req.GetAfterRevision():
		return refusal
	}
	resp := &lofamov1.WatchIncidentsResponse{Incidents: list.GetIncidents(), Revision: list.GetRevision()}
	resp.Gone = known.without(kept.GetIncidents())
	slices.SortFunc(resp.Incidents, func(a, b *lofamov1.Incident) int { return cmp.Compare(a.GetRevision(), b.GetRevision()) })
	known.update(resp)
	if err := each(resp); err != nil {
		return finalError{err}
	}
	req.AfterRevision = resp.GetRevision()
	return nil
}

// knownIncidents are the incidents that the caller of a watch knows. A parent of regions has no revision to resume after, and sends all
// incidents again.
type knownIncidents struct {
	states    []lofamov1.IncidentState // those that the caller wants; empty: all
	revisions map[string]uint64        // of the incidents in these states, by id
}

// update drops incidents that have not changed from a response, and incidents outside the states unless they have just left them. It
// records the others as known.
func (k *knownIncidents) update(resp *lofamov1.WatchIncidentsResponse) {
	resp.Incidents = slices.DeleteFunc(resp.GetIncidents(), func(in *lofamov1.Incident) bool {
		revision, known := k.revisions[in.GetId()]
		if len(k.states) > 0 && !slices.Contains(k.states, in.GetState()) {
			delete(k.revisions, in.GetId())
			return !known
		}
		k.revisions[in.GetId()] = in.GetRevision()
		return known && revision == in.GetRevision()
	})
	for _, id := range resp.GetGone() {
		delete(k.revisions, id)
	}
}

// note records the incidents of a response.
func (k *knownIncidents) note(resp *lofamov1.WatchIncidentsResponse) {
	k.update(&lofamov1.WatchIncidentsResponse{Incidents: slices.Clone(resp.GetIncidents()), Gone: resp.GetGone()})
}

// without returns the ids of the known incidents that a list lacks.
func (k *knownIncidents) without(list []*lofamov1.Incident) []string {
	gone := maps.Clone(k.revisions)
	for _, in := range list {
		delete(gone, in.GetId())
	}
	return slices.Sorted(maps.Keys(gone))
}
