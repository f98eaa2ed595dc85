package respond

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// Results begin at 0 for every kind and outcome: a rate over a series that begins with the first failure would miss
// it.
func TestResultsBeginAtZero(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.ended(executor.Job{Effect: response.Effect{Kind: response.PowerReset}}, executor.NotKnown("nobody has seen"), 0, false)
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[[2]string]float64{}
	for _, f := range all {
		if f.GetName() != "lofamo_responses_results_total" {
			continue
		}
		for _, s := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range s.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			got[[2]string{labels["kind"], labels["outcome"]}] = s.GetCounter().GetValue()
		}
	}
	if len(got) != len(response.Kinds())*int(response.StaleToken) {
		t.Errorf("%d series: want one for each kind and outcome", len(got))
	}
	for k, v := range got {
		if want := k == [2]string{"power.reset", "not_known"}; (v != 0) != want || !response.Kind(k[0]).Valid() {
			t.Errorf("%v: %v", k, v)
		}
	}
}
