package respond

import (
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/response"
)

// TestBatchWritesOrForgetsARecord: over the steps of a batch, the last one that writes or forgets a record decides. The store refuses a
// transaction that puts and deletes one key.
func TestBatchWritesOrForgetsARecord(t *testing.T) {
	record := func(id string) response.Record { return &response.IncidentRecord{Incident: id} }
	b := newBatch()
	for _, out := range []response.Output{
		{Records: []response.Record{record("a"), record("b")}, Forget: []string{"incident/c", "incident/d"}},
		{Records: []response.Record{record("c"), record("e")}, Forget: []string{"incident/a"}},
		{Records: []response.Record{record("a")}, Forget: []string{"incident/e"}},
		{Forget: []string{"incident/a"}},
	} {
		b.keep(out)
	}
	out := b.render()
	var written []string
	for _, r := range out.Records {
		written = append(written, r.Key())
	}
	slices.Sort(written)
	slices.Sort(out.Forget)
	if want := []string{"incident/b", "incident/c"}; !slices.Equal(written, want) {
		t.Errorf("written: %q: want %q", written, want)
	}
	if want := []string{"incident/a", "incident/d", "incident/e"}; !slices.Equal(out.Forget, want) {
		t.Errorf("forgotten: %q: want %q", out.Forget, want)
	}
}
