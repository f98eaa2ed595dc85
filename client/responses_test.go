package client_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

func auditLines(from, to uint64) []*lofamov1.AuditLine {
	var out []*lofamov1.AuditLine
	for n := from; n <= to; n++ {
		out = append(out, &lofamov1.AuditLine{Seq: n})
	}
	return out
}

// TestExportGoesOnAcrossReplicas: the client resumes after the last line at another supervisor, and an error of the
// caller's own ends the export.
func TestExportGoesOnAcrossReplicas(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	a, b := clienttest.Serve(t, dir, clienttest.NewMap()), clienttest.Serve(t, dir, clienttest.NewMap())
	a.Responses.Lines, a.Responses.Err = auditLines(1, 3), status.Error(codes.Unavailable, "stopping")
	b.Responses.Lines = auditLines(4, 7)
	c := dial(t, dir, a.Address, b.Address)
	var got []uint64
	err := c.ExportAudit(bounded(t), &lofamov1.ExportAuditRequest{}, func(lines []*lofamov1.AuditLine) error {
		for _, l := range lines {
			got = append(got, l.GetSeq())
		}
		return nil
	})
	if err != nil || fmt.Sprint(got) != "[1 2 3 4 5 6 7]" || len(b.Responses.Asked) != 1 || !strings.Contains(b.Responses.Asked[0], "from:4") {
		t.Errorf("%v, %v, asked %v", got, err, b.Responses.Asked)
	}
	calls := 0
	err = c.ExportAudit(bounded(t), &lofamov1.ExportAuditRequest{}, func([]*lofamov1.AuditLine) error {
		calls++
		return errors.New("disk full")
	})
	if err == nil || !strings.Contains(err.Error(), "disk full") || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	old := clienttest.Serve(t, dir, clienttest.NewMap()) // b may still serve the call that ended early
	old.Responses.Err = status.Error(codes.OutOfRange, "line 4 is no longer kept")
	if err = dial(t, dir, a.Address, old.Address).ExportAudit(bounded(t), &lofamov1.ExportAuditRequest{},
		func([]*lofamov1.AuditLine) error { return nil }); status.Code(err) != codes.OutOfRange {
		t.Errorf("%v", err)
	}
}

// TestStreamEndsWithItsCall: a caller that stops reading a stream ends it at the supervisor too.
func TestStreamEndsWithItsCall(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	s := clienttest.Serve(t, dir, clienttest.NewMap())
	s.Responses.Changes = []*lofamov1.WatchResponsesResponse{{Gone: []string{"r1-1"}}}
	s.Responses.Silent, s.Responses.Ended = true, make(chan struct{}, 1)
	full := errors.New("disk full")
	err := dial(t, dir, s.Address).WatchResponses(bounded(t), nil, func(*lofamov1.WatchResponsesResponse, bool) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("%v: want the caller's error", err)
	}
	select {
	case <-s.Responses.Ended:
	case <-time.After(bound):
		t.Error("the supervisor still serves the stream")
	}
}

// TestWatchOfResponsesGoesOn: when a supervisor stops, the watch continues at another one, which sends everything
// again.
func TestWatchOfResponsesGoesOn(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	a, b := clienttest.Serve(t, dir, clienttest.NewMap()), clienttest.Serve(t, dir, clienttest.NewMap())
	said := func(id string) []*lofamov1.WatchResponsesResponse {
		return []*lofamov1.WatchResponsesResponse{{Responses: []*lofamov1.Response{{Id: id}}}, {Gone: []string{id}}}
	}
	a.Responses.Changes, a.Responses.Err = said("r1-1"), status.Error(codes.Unavailable, "stopping")
	b.Responses.Changes, b.Responses.Err = said("r2-1"), status.Error(codes.PermissionDenied, "no")
	var got []string
	err := dial(t, dir, a.Address, b.Address).WatchResponses(bounded(t), nil, func(r *lofamov1.WatchResponsesResponse, anew bool) error {
		for _, x := range r.GetResponses() {
			got = append(got, fmt.Sprint(x.GetId(), " ", anew))
		}
		for _, id := range r.GetGone() {
			got = append(got, fmt.Sprint(id, " gone ", anew))
		}
		return nil
	})
	if status.Code(err) != codes.PermissionDenied || fmt.Sprint(got) != "[r1-1 true r1-1 gone false r2-1 true r2-1 gone false]" {
		t.Errorf("%v, %v", got, err)
	}
}

// TestStreamsGoOnAfterEachSupervisorFailedOnce: as in a rolling upgrade, each supervisor serves, fails, and serves again.
func TestStreamsGoOnAfterEachSupervisorFailedOnce(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	a, b := clienttest.Serve(t, dir, clienttest.NewMap()), clienttest.Serve(t, dir, clienttest.NewMap())
	for _, s := range []*clienttest.Server{a, b} {
		s.Responses.Changes, s.Responses.Lines = []*lofamov1.WatchResponsesResponse{{}}, auditLines(1, 1)
		s.Responses.Err = status.Error(codes.Unavailable, "stopping")
	}
	c, enough := dial(t, dir, a.Address, b.Address), errors.New("enough")
	for name, call := range map[string]func(each func() error) error{
		"watch of responses": func(each func() error) error {
			return c.WatchResponses(bounded(t), nil, func(*lofamov1.WatchResponsesResponse, bool) error { return each() })
		},
		"export of the audit": func(each func() error) error {
			return c.ExportAudit(bounded(t), &lofamov1.ExportAuditRequest{Follow: true}, func([]*lofamov1.AuditLine) error { return each() })
		},
	} {
		calls := 0
		err := call(func() error {
			if calls++; calls == 5 {
				return enough
			}
			return nil
		})
		if calls != 5 || err == nil || !strings.Contains(err.Error(), enough.Error()) {
			t.Errorf("%s: %d responses, %v: want 5, from both supervisors in turn", name, calls, err)
		}
	}
}

// TestWordsAreSaidOnce: the client does not repeat a refused call, or one that may have succeeded, at another
// supervisor.
func TestWordsAreSaidOnce(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	a, b := clienttest.Serve(t, dir, clienttest.NewMap()), clienttest.Serve(t, dir, clienttest.NewMap())
	c := dial(t, dir, a.Address, b.Address)
	for _, code := range []codes.Code{codes.Aborted, codes.DeadlineExceeded, codes.PermissionDenied} {
		a.Responses.Err = status.Error(code, "no")
		if _, err := c.ApproveResponse(bounded(t), &lofamov1.ApproveResponseRequest{Id: "r1-1"}); status.Code(err) != code {
			t.Errorf("%v, want %v", err, code)
		}
	}
	if len(a.Responses.Asked) != 3 || len(b.Responses.Asked) != 0 {
		t.Errorf("asked %v, then %v", a.Responses.Asked, b.Responses.Asked)
	}
	a.Stop()
	var unknown *client.UnknownOutcomeError
	_, err := c.ApproveResponse(bounded(t), &lofamov1.ApproveResponseRequest{Id: "r1-1"})
	for errors.As(err, &unknown) { // until the client knows that the connection has ended
		_, err = c.ApproveResponse(bounded(t), &lofamov1.ApproveResponseRequest{Id: "r1-1"})
	}
	if err != nil || len(b.Responses.Asked) != 1 {
		t.Errorf("%v, asked %v", err, b.Responses.Asked)
	}
}
