package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestSlowIncidentWatchSkipsVersions: a client that did not read for a while gets the newest form, and the count of the
// versions that it missed.
func TestSlowIncidentWatchSkipsVersions(t *testing.T) {
	open := func(in *lofamov1.Incident) bool { return in.GetState() != lofamov1.IncidentState_CLOSED }
	w := incidentWatch{keep: open, sent: make(map[string]uint64)}
	of := func(version uint64, s lofamov1.IncidentState) []*store.StoredIncident {
		return []*store.StoredIncident{{Incident: &lofamov1.Incident{Id: "a", Version: version, State: s}}}
	}
	kept := func(string) bool { return true }
	if resp := w.next(nil, 3, kept); resp == nil || resp.GetRevision() != 3 {
		t.Errorf("first: %v: want a bookmark", resp)
	}
	if resp := w.next(of(1, lofamov1.IncidentState_OPEN), 4, kept); len(resp.GetIncidents()) != 1 || resp.GetSkipped() != 0 {
		t.Errorf("opened: %v", resp)
	}
	if resp := w.next(of(5, lofamov1.IncidentState_RECOVERING), 9, kept); len(resp.GetIncidents()) != 1 || resp.GetSkipped() != 3 {
		t.Errorf("after 3 missed versions: %v", resp)
	}
	if resp := w.next(nil, 10, kept); resp != nil {
		t.Errorf("without changes: %v", resp)
	}
	if resp := w.next(of(6, lofamov1.IncidentState_CLOSED), 11, kept); len(resp.GetIncidents()) != 1 {
		t.Errorf("leaves the filter: %v: want it once more", resp)
	}
	if resp := w.next(of(7, lofamov1.IncidentState_CLOSED), 12, kept); resp != nil {
		t.Errorf("outside the filter: %v", resp)
	}
	w.next(of(8, lofamov1.IncidentState_OPEN), 13, kept)
	if resp := w.next(nil, 14, func(string) bool { return false }); !slices.Equal(resp.GetGone(), []string{"a"}) {
		t.Errorf("no longer kept: %v", resp)
	}
}

// TestSkippedIncidentVersionsAreCounted: the counter has the versions that slow watches did not get, of all watches together.
func TestSkippedIncidentVersionsAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := New(Config{Metrics: metrics.New(registry)})
	all := func(*lofamov1.Incident) bool { return true }
	slow, quick := incidentWatch{keep: all, sent: map[string]uint64{}}, incidentWatch{keep: all, sent: map[string]uint64{}}
	for _, step := range []struct {
		w       *incidentWatch
		version uint64
		want    float64 // value of the counter
	}{
		{&slow, 1, 0}, {&quick, 1, 0}, {&quick, 2, 0}, {&quick, 3, 0}, {&slow, 5, 3}, {&slow, 6, 3}, {&quick, 6, 5},
	} {
		v := store.IncidentView{Ready: true, Revision: step.version, Incidents: []*store.StoredIncident{
			{Incident: &lofamov1.Incident{Id: "a", Version: step.version, Revision: step.version}},
		}}
		s.nextIncidents(step.w, v, func(string) bool { return true })
		all, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := -1.0
		for _, of := range all {
			if of.GetName() == "lofamo_incident_versions_skipped_total" {
				got = of.GetMetric()[0].GetCounter().GetValue()
			}
		}
		if got != step.want {
			t.Errorf("at version %d: %v versions skipped, want %v", step.version, got, step.want)
		}
	}
}

// TestResumedIncidentWatchGetsClosings: a client that resumes knows incidents from its earlier stream. It gets each closing
// once, of incidents that changed while it reconnected and of those that change later; none of other nodes.
func TestResumedIncidentWatchGetsClosings(t *testing.T) {
	of := func(in *lofamov1.Incident) bool { return in.GetNode() == "n1" }
	open := func(in *lofamov1.Incident) bool { return of(in) && in.GetState() != lofamov1.IncidentState_CLOSED }
	incident := func(id, node string, revision uint64, s lofamov1.IncidentState) *store.StoredIncident {
		return &store.StoredIncident{Incident: &lofamov1.Incident{Id: id, Node: node, Version: revision, Revision: revision, State: s}}
	}
	closed := func(id, node string, revision uint64) []*store.StoredIncident {
		return []*store.StoredIncident{incident(id, node, revision, lofamov1.IncidentState_CLOSED)}
	}
	kept := func(string) bool { return true }
	w := incidentWatch{keep: open, of: of, after: 5, resuming: true, left: make(map[string]bool), sent: make(map[string]uint64)}
	if err := w.resume(store.IncidentView{Ready: true, Revision: 8, Trimmed: 5, Incidents: []*store.StoredIncident{
		incident("late", "n1", 5, lofamov1.IncidentState_OPEN), incident("gone", "n1", 3, lofamov1.IncidentState_OPEN),
		incident("old", "n1", 3, lofamov1.IncidentState_CLOSED), incident("meanwhile", "n1", 7, lofamov1.IncidentState_CLOSED),
	}}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		what string
		list []*store.StoredIncident
		want string
	}{
		{"closed while the client reconnected", slices.Concat(closed("meanwhile", "n1", 7), closed("other", "n2", 8)), "meanwhile"},
		{"unchanged until then, closed later", closed("late", "n1", 10), "late"},
		{"of a copy that was behind the client", closed("behind", "n1", 11), "behind"},
		{"closed before", closed("late", "n1", 12), ""},
	} {
		var got strings.Builder
		for _, in := range w.next(step.list, 13, kept).GetIncidents() {
			got.WriteString(in.GetId())
		}
		if got.String() != step.want {
			t.Errorf("%s: got %q: want %q", step.what, got.String(), step.want)
		}
	}
	if resp := w.next(nil, 14, func(id string) bool { return id != "gone" }); !slices.Equal(resp.GetGone(), []string{"gone"}) {
		t.Errorf("no longer kept: %v: want gone", resp)
	}
	fresh := incidentWatch{keep: open, sent: make(map[string]uint64)}
	if resp := fresh.next(closed("meanwhile", "n1", 7), 9, kept); len(resp.GetIncidents()) > 0 {
		t.Errorf("a client that does not resume: %v: want no closing", resp)
	}
}

// TestResumedIncidentWatchRefusesMissedEnds: an incident closed while the client was away, and is no longer kept. The watch cannot send it,
// so it tells the client to list again. A copy that is behind the client learns of the bound later.
func TestResumedIncidentWatchRefusesMissedEnds(t *testing.T) {
	view := func(revision, trimmed uint64) store.IncidentView {
		return store.IncidentView{Ready: true, Revision: revision, Trimmed: trimmed}
	}
	for _, tc := range []struct {
		what  string
		after uint64
		views []store.IncidentView
		code  codes.Code
	}{
		{"no incident was trimmed", 5, []store.IncidentView{view(40, 0)}, codes.OK},
		{"the client knows the end", 7, []store.IncidentView{view(40, 7)}, codes.OK},
		{"the client misses the end", 5, []store.IncidentView{view(40, 7)}, codes.OutOfRange},
		{"a copy behind the client", 50, []store.IncidentView{view(40, 7), view(49, 7), view(61, 60)}, codes.OutOfRange},
		{"trimmed after the copy caught up", 50, []store.IncidentView{view(40, 7), view(50, 7), view(61, 60)}, codes.OK},
		{"a client that does not resume", 0, []store.IncidentView{view(40, 7)}, codes.OK},
	} {
		all := func(*lofamov1.Incident) bool { return true }
		w := incidentWatch{keep: all, of: all, after: tc.after, resuming: tc.after > 0, sent: make(map[string]uint64)}
		var err error
		for _, v := range tc.views {
			if err = w.resume(v); err == nil {
				w.next(nil, v.Revision, func(string) bool { return true })
			}
		}
		if status.Code(err) != tc.code {
			t.Errorf("%s: %v: want %v", tc.what, err, tc.code)
		}
		if err != nil && (infoOf(t, err).GetReason() != reasonExpired || !strings.Contains(err.Error(), "want at least")) {
			t.Errorf("%s: %v: want the reason %s, and the bound", tc.what, err, reasonExpired)
		}
	}
}

// TestIncidentPagesShowEachOnce pages through incidents of which some began at one moment.
func TestIncidentPagesShowEachOnce(t *testing.T) {
	base := time.Unix(1_700_000_000, 0)
	list := func() *lofamov1.ListIncidentsResponse {
		resp := &lofamov1.ListIncidentsResponse{}
		for i, id := range []string{"f", "c", "d", "e", "a", "b"} {
			at := []int{9, 5, 5, 5, 2, 1}[i]
			resp.Incidents = append(resp.Incidents, &lofamov1.Incident{Id: id, Since: timestamppb.New(base.Add(time.Duration(at)))})
		}
		return resp
	}
	for limit := 1; limit <= 7; limit++ {
		var ids []string
		var page *token
		for range 10 {
			resp := list()
			pageOfIncidents(resp, 1, page, limit)
			for _, in := range resp.GetIncidents() {
				ids = append(ids, in.GetId())
			}
			if resp.GetContinue() == "" {
				break
			}
			next, err := parseToken(resp.GetContinue())
			if err != nil {
				t.Fatal(err)
			}
			page = &next
		}
		if want := []string{"f", "c", "d", "e", "a", "b"}; !slices.Equal(ids, want) {
			t.Errorf("in pages of %d: %q: want %q", limit, ids, want)
		}
	}
}

func TestClosedIncidentTakesNoAcknowledgement(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	closed := &lofamov1.Incident{Id: "a", State: lofamov1.IncidentState_CLOSED, Until: timestamppb.New(now), MergedInto: "b"}
	_, err := acknowledged(closed, "operator/x", "note", now)
	refused(t, "a closed one", err, codes.Aborted,
		"incident a has been CLOSED since 2023-11-14T22:13:20Z: want an OPEN or RECOVERING one; nothing was changed: incident b continues it")
	if infoOf(t, err).GetReason() != "INCIDENT_CLOSED" {
		t.Errorf("%v", infoOf(t, err))
	}
	open := &lofamov1.Incident{Id: "a", State: lofamov1.IncidentState_OPEN}
	first, err := acknowledged(open, "operator/x", "", now)
	if err != nil || first.GetAcknowledgement().GetBy() != "operator/x" || len(first.GetNotes()) != 0 {
		t.Errorf("%v, %v", first, err)
	}
	if again, err := acknowledged(first, "operator/y", " ", now); err != nil || again != first {
		t.Errorf("%v, %v: want no change", again, err)
	}
	if noted, err := acknowledged(first, "operator/y", "mine", now); err != nil || noted.GetAcknowledgement().GetBy() != "operator/x" ||
		noted.GetNotes()[0].GetBy() != "operator/y" {
		t.Errorf("%v, %v", noted, err)
	}
}

// TestLargeIncidentsFitIntoDefaultMessages: a client with the default limit of 4 MiB for a message can list and watch thousands of
// incidents, each as large as it may be. It gets each once, and may break off after any message and resume.
func TestLargeIncidentsFitIntoDefaultMessages(t *testing.T) {
	const limit = 4 << 20
	large := largeIncident()
	if n := proto.Size(large); n < 128<<10 || n > limit-maxIncidentBytes {
		t.Fatalf("the largest incident has %d bytes: want less than the room beside a full message", n)
	}
	var all []*lofamov1.Incident
	for i := range 300 {
		in := proto.CloneOf(large)
		in.Id, in.Revision, in.Since = fmt.Sprint(i), uint64(1+i/3), timestamppb.New(time.Unix(int64(i/5), 0))
		all = append(all, in)
	}
	for _, want := range []int{0, 10_000, 7} {
		ids := map[string]bool{}
		var page *token
		for {
			resp := &lofamov1.ListIncidentsResponse{Incidents: slices.Clone(all)}
			slices.Reverse(resp.Incidents)
			pageOfIncidents(resp, 1, page, want)
			if n := proto.Size(resp); n > limit || len(resp.GetIncidents()) == 0 {
				t.Fatalf("a page of %d incidents has %d bytes", len(resp.GetIncidents()), n)
			}
			for _, in := range resp.GetIncidents() {
				ids[in.GetId()] = true
			}
			if resp.GetContinue() == "" {
				break
			}
			next, err := parseToken(resp.GetContinue())
			if err != nil {
				t.Fatal(err)
			}
			page = &next
		}
		if len(ids) != len(all) {
			t.Errorf("limit %d: %d incidents: want %d", want, len(ids), len(all))
		}
	}
	var after uint64
	messages, seen := 0, map[string]bool{}
	resp := &lofamov1.WatchIncidentsResponse{Incidents: all, Revision: 500, Gone: []string{"x"}, Skipped: 3}
	err := sendIncidents(resp, func(part *lofamov1.WatchIncidentsResponse) error {
		if n := proto.Size(part); n > limit {
			t.Errorf("a response has %d bytes", n)
		}
		messages++
		for _, in := range part.GetIncidents() {
			seen[in.GetId()] = true
		}
		if after = part.GetRevision(); (len(seen) < len(all)) != (len(part.GetGone()) == 0) {
			t.Error("only the last response names incidents that are gone")
		}
		for _, in := range all {
			if in.GetRevision() <= after && !seen[in.GetId()] {
				t.Errorf("a client that resumes after %d misses incident %s of revision %d", after, in.GetId(), in.GetRevision())
			}
		}
		return nil
	})
	if err != nil || len(seen) != len(all) || after != 500 || messages < 10 {
		t.Errorf("%v: %d incidents in %d messages until revision %d", err, len(seen), messages, after)
	}
}

// largeIncident returns an incident of the largest permitted size.
func largeIncident() *lofamov1.Incident {
	text := func(n int) string { return strings.Repeat("x", n) }
	in := &lofamov1.Incident{
		Id: "k3f9-aaaaaaaa", Summary: text(512), Verdict: &lofamov1.Verdict{Reason: text(512)}, ConsequenceCount: 60_000,
		Acknowledgement: &lofamov1.Acknowledgement{By: text(64)}, Labels: map[string]string{},
	}
	for i := range fault.MaxLabels {
		in.Labels[fmt.Sprint(i, text(300))] = text(63)
	}
	for range 64 {
		in.Consequences = append(in.Consequences, &lofamov1.Consequence{Node: text(64), Component: "peripheral/0", Reason: "service-network"})
		in.Merged = append(in.Merged, "k3f9-aaaaaaaa")
	}
	for range 16 {
		in.Verdict.Evidence = append(in.Verdict.Evidence,
			&lofamov1.Evidence{Kind: "DESCRIPTOR", Observer: text(70), Detail: text(fault.MaxDetail)})
		in.Verdict.Witnesses = append(in.Verdict.Witnesses, text(70))
		in.Responses = append(in.Responses, &lofamov1.IncidentResponse{Id: text(20), Policy: text(63), Node: text(64), Result: text(256),
			Notified: slices.Repeat([]string{text(128)}, 16)})
	}
	for range maxNotes {
		in.Notes = append(in.Notes, &lofamov1.IncidentNote{By: text(64), Text: text(maxNote)})
	}
	return in
}

// TestOutdatedAcknowledgementIsReplaced: an acknowledgement from before an escalation no longer counts. The next one
// replaces it.
func TestOutdatedAcknowledgementIsReplaced(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	in := &lofamov1.Incident{Id: "a", State: lofamov1.IncidentState_OPEN, Escalations: 2,
		Acknowledgement: &lofamov1.Acknowledgement{By: "operator/x", Escalations: 1, Outdated: true}}
	got, err := acknowledged(in, "operator/y", "", now)
	if ack := got.GetAcknowledgement(); err != nil || ack.GetBy() != "operator/y" || ack.GetEscalations() != 2 || ack.GetOutdated() {
		t.Errorf("%v, %v: want it acknowledged by operator/y", got, err)
	}
	if again, err := acknowledged(got, "operator/z", "", now); err != nil || again != got {
		t.Errorf("%v, %v: want no change", again, err)
	}
}

// TestParentPrefixesIDsWithRegion: a parent calls the incidents and the group faults of a region REGION/ID.
func TestParentPrefixesIDsWithRegion(t *testing.T) {
	got := ofRegion("west", &lofamov1.Incident{Id: "k3f9-aaaaaaaa", Group: "label/rack=r7", Merged: []string{"k3f9-bbbbbbbb"}, Node: "n1",
		Responses: []*lofamov1.IncidentResponse{{Id: "1", Group: "label/rack=r7"}, {Id: "2", Node: "n1"}}})
	want := &lofamov1.Incident{Id: "west/k3f9-aaaaaaaa", Group: "west/label/rack=r7", Merged: []string{"west/k3f9-bbbbbbbb"}, Node: "n1",
		Region: "west", Responses: []*lofamov1.IncidentResponse{{Id: "1", Group: "west/label/rack=r7"}, {Id: "2", Node: "n1"}}}
	if !proto.Equal(got, want) {
		t.Errorf("%v: want %v", got, want)
	}
}
