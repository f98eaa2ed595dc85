package trial

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
)

// TestGrowingProcessIsFound plants processes whose memory, descriptors and threads grow, for less and more than an hour.
func TestGrowingProcessIsFound(t *testing.T) {
	grows := func(perHour float64, minutes int) []Sample {
		var out []Sample
		for i := range minutes {
			at := time.Duration(i) * time.Minute
			out = append(out, Sample{at, 50 + perHour*at.Hours()})
		}
		return out
	}
	for _, tt := range []struct {
		name             string
		anonymous, pages float64
		mapped           float64
		files, threads   float64
		minutes          int
		want             []string
	}{
		{"steady", 0.5, 0.4, 0, 0, 1, 120, nil},
		{"anonymous memory", 3, 0, 0, 0, 0, 120, []string{"supervisor, process 1, grows by 3.00 MB/h of anonymous memory: limit 1 MB/h"}},
		{"anonymous memory instead of pages", 3, -3, 0, 0, 0, 120, []string{"grows by 3.00 MB/h of anonymous memory"}},
		{"anonymous memory, too short to judge", 3, 0, 0, 0, 0, 70, nil}, // with the 15 minutes in which the store fills
		{"pages of files that stay", 0, 4, 0, 0, 0, 120, nil},
		{"pages of files that grow", 0, 4, 5, 0, 0, 120, []string{"grows by 4.00 MB/h of pages of files, and these files by 5.00 MB/h"}},
		{"files that grow, but few pages", 0, 0.5, 5, 0, 0, 120, nil},
		{"descriptors", 0, 0, 0, 60, 0, 90, []string{"60.0 descriptors"}},
		{"threads and memory", 2, 0, 0, 0, 30, 90, []string{"grows by 2.00", "30.0 threads"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &Resources{procs: map[cluster.Process]*usage{{PID: 1, Started: 1}: {role: "supervisor",
				resident: grows(tt.anonymous+tt.pages, tt.minutes), anonymous: grows(tt.anonymous, tt.minutes), files: grows(tt.pages, tt.minutes),
				mapped: grows(tt.mapped, tt.minutes), descriptors: grows(tt.files, tt.minutes), tasks: grows(tt.threads, tt.minutes)}}}
			u, bad := r.Usages()
			if len(u) != 1 || u[0].Sloped != 1 || u[0].Processes != 1 {
				t.Fatalf("usages %+v: want one process with a slope", u)
			}
			for of, got := range map[string][2]float64{"memory": {u[0].Steepest, tt.anonymous + tt.pages},
				"anonymous": {u[0].Parts.Anonymous.Steepest, tt.anonymous}, "pages": {u[0].Parts.Files.Median, tt.pages},
				"files": {u[0].Parts.Mapped.Median, tt.mapped}} {
				if math.Abs(got[0]-got[1]) > 1e-6 {
					t.Errorf("slope of %s: %f, want %f", of, got[0], got[1])
				}
			}
			if len(bad) != len(tt.want) {
				t.Fatalf("violations %q, want %q", bad, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(bad[i], want) {
					t.Errorf("violation %q: want %q", bad[i], want)
				}
			}
		})
	}
}

// TestChangeOfLeaderIsNoGrowth: a supervisor that becomes the leader needs more memory. Its slope begins again.
func TestChangeOfLeaderIsNoGrowth(t *testing.T) {
	var steps []Sample
	for i := range 180 {
		value := 50.0
		if i > 130 {
			value = 58
		}
		steps = append(steps, Sample{time.Duration(i) * time.Minute, value})
	}
	u := &usage{role: supervisorRole, resident: steps, anonymous: steps}
	r := &Resources{procs: map[cluster.Process]*usage{{PID: 1, Started: 1}: u}}
	if _, bad := r.Usages(); len(bad) != 1 {
		t.Errorf("violations %q: want one, because no change of the leader explains the growth", bad)
	}
	r.led = 130 * time.Minute
	if all, bad := r.Usages(); len(bad) != 0 || all[0].Longest != 34*time.Minute {
		t.Errorf("violations %q, a slope over %s: want none over 34m", bad, all[0].Longest)
	}
}

// TestSlopeCoversTheLastHour: memory that stopped growing an hour ago is no growth, and growth within the last hour is.
func TestSlopeCoversTheLastHour(t *testing.T) {
	grown := func(from, to int) *Resources {
		var out []Sample
		for i := range 200 {
			out = append(out, Sample{time.Duration(i) * time.Minute, 50 + 3*float64(min(max(i, from), to)-from)/60})
		}
		return &Resources{procs: map[cluster.Process]*usage{{PID: 1, Started: 1}: {role: supervisorRole, anonymous: out, resident: out}}}
	}
	if _, bad := grown(0, 139).Usages(); len(bad) != 0 {
		t.Errorf("growth that ended an hour ago: violations %q", bad)
	}
	if _, bad := grown(139, 199).Usages(); len(bad) != 1 || !strings.Contains(bad[0], "grows by 3.00 MB/h") {
		t.Errorf("growth of 3 MB in the last hour: violations %q", bad)
	}
}

func TestProcessIsSampled(t *testing.T) {
	s, err := readStatus(os.Getpid())
	if err != nil || s.resident < 1 || s.anonymous < 1 || s.files < 1 || s.tasks < 1 {
		t.Errorf("%+v, %v: want the memory and the threads of this process", s, err)
	}
	if sum := s.anonymous + s.files; sum > 1.1*s.resident || sum < 0.8*s.resident {
		t.Errorf("%+v: want parts that make the whole", s)
	}
	if mapped := mappedFiles(os.Getpid()); mapped < s.files || mapped > 1000 {
		t.Errorf("the mapped files have %f MB, their resident pages %f MB: want more, and no more than the files have", mapped, s.files)
	}
	if mapped := mappedFiles(-1); mapped != 0 {
		t.Errorf("a missing process maps %f MB", mapped)
	}
	if _, err := readStatus(-1); err == nil {
		t.Error("no error for a missing process")
	}
	r := WatchResources(func() []cluster.Process { return []cluster.Process{{PID: os.Getpid(), Agent: true}} })
	r.Close()
	if u, _ := r.Usages(); len(u) != 1 || u[0].Role != "daemon" || u[0].Descriptors < 1 {
		t.Errorf("%+v: want one process", u)
	}
}
