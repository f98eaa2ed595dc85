package trial

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
)

const (
	sampleEvery = 5 * time.Second
	// warmUp is the part of a process's life that its slopes leave out. The store of a supervisor takes longer to fill.
	warmUp, storeWarmUp = 2 * time.Minute, 15 * time.Minute
	// slopeSpan is the least time for a slope in the record, and judgedSpan that for a violation.
	slopeSpan, judgedSpan = 5 * time.Minute, time.Hour
	// memoryLimit and countLimit are the largest slopes of a process: MB, and descriptors or threads, an hour.
	memoryLimit, countLimit = 1.0, 10.0
)

// Resources samples memory, descriptors and threads of all processes of a cluster.
type Resources struct {
	list  func() []cluster.Process
	began time.Time
	stop  context.CancelFunc
	done  chan struct{}
	mu    sync.Mutex
	procs map[cluster.Process]*usage
}

// usage is the samples of one process.
type usage struct {
	role                         string
	resident, descriptors, tasks []Sample
	// anonymous and files are parts of resident. The kernel takes pages of files, such as the store's database, back when it
	// needs memory; anonymous ones it cannot.
	anonymous, files []Sample
}

// WatchResources starts the sampling. Close ends it.
func WatchResources(list func() []cluster.Process) *Resources {
	ctx, stop := context.WithCancel(context.Background())
	r := &Resources{list: list, began: time.Now(), stop: stop, done: make(chan struct{}), procs: map[cluster.Process]*usage{}}
	go func() {
		defer close(r.done)
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			r.take()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return r
}

// Close ends the sampling and keeps the samples.
func (r *Resources) Close() {
	r.stop()
	<-r.done
}

func (r *Resources) take() {
	list := r.list()
	at := time.Since(r.began)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range list {
		u := r.procs[p]
		if u == nil {
			u = &usage{role: roleOf(p)}
			r.procs[p] = u
		}
		now, err := readStatus(p.PID)
		if err != nil {
			continue // it has just ended
		}
		descriptors, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.PID), "fd"))
		if err != nil {
			continue
		}
		u.resident = append(u.resident, Sample{at, now.resident})
		u.anonymous = append(u.anonymous, Sample{at, now.anonymous})
		u.files = append(u.files, Sample{at, now.files})
		u.tasks = append(u.tasks, Sample{at, now.tasks})
		u.descriptors = append(u.descriptors, Sample{at, float64(len(descriptors))})
	}
}

const supervisorRole = "supervisor"

// roleOf returns "host half", "DNP half", "daemon" or "supervisor".
func roleOf(p cluster.Process) string {
	if !p.Agent {
		return supervisorRole
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)) // of an ended process: daemon
	args := bytes.Split(b, []byte{0})
	if len(args) > 1 {
		switch string(args[1]) {
		case "host":
			return "host half"
		case "dnp":
			return "DNP half"
		}
	}
	return "daemon"
}

// procStatus is the memory of a process in MB, and its threads.
type procStatus struct{ resident, anonymous, files, tasks float64 }

func readStatus(pid int) (out procStatus, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return procStatus{}, err
	}
	const mb = 1024 / 1e6 // of one KiB
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		var to *float64
		unit := mb
		switch f[0] {
		case "VmRSS:":
			to = &out.resident
		case "RssAnon:":
			to = &out.anonymous
		case "RssFile:":
			to = &out.files
		case "Threads:":
			to, unit = &out.tasks, 1
		default:
			continue
		}
		v, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return procStatus{}, err
		}
		*to = v * unit
	}
	return out, nil
}

// Usage is the consumption of all processes of one role. Slopes are of processes that were sampled for at least five
// minutes after their warm-up; Sloped is their number and Longest the longest time.
type Usage struct {
	Role        string        `json:"role"`
	Processes   int           `json:"processes"`
	Resident    float64       `json:"resident"`    // MB, the largest
	Descriptors float64       `json:"descriptors"` // the largest
	Threads     float64       `json:"threads"`     // the largest
	Sloped      int           `json:"sloped"`
	Longest     time.Duration `json:"longest"`
	Median      float64       `json:"median"`    // slope of the memory, MB/h
	Steepest    float64       `json:"steepest"`  // slope of the memory, MB/h
	MoreFiles   float64       `json:"moreFiles"` // steepest slope of descriptors, 1/h
	MoreThreads float64       `json:"moreThreads"`
}

// Usages returns the consumption by role, and a violation for every process that was sampled for an hour and grew.
func (r *Resources) Usages() (out []Usage, bad []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	byRole, slopes := map[string]*Usage{}, map[string][]float64{}
	for _, p := range slices.SortedFunc(maps.Keys(r.procs), func(a, b cluster.Process) int { return cmp.Compare(a.PID, b.PID) }) {
		u := r.procs[p]
		role := byRole[u.role]
		if role == nil {
			role = &Usage{Role: u.role}
			byRole[u.role] = role
		}
		role.Processes++
		role.Resident = max(role.Resident, most(u.resident))
		role.Descriptors = max(role.Descriptors, most(u.descriptors))
		role.Threads = max(role.Threads, most(u.tasks))
		resident, descriptors, tasks := u.warm(u.resident), u.warm(u.descriptors), u.warm(u.tasks)
		span := spanOf(resident)
		if span < slopeSpan {
			continue
		}
		memory, files, threads := Slope(resident), Slope(descriptors), Slope(tasks)
		first := role.Sloped == 0
		role.Sloped++
		role.Longest = max(role.Longest, span.Round(time.Second))
		slopes[u.role] = append(slopes[u.role], memory)
		if first {
			role.Steepest, role.MoreFiles, role.MoreThreads = memory, files, threads
		}
		role.Steepest, role.MoreFiles = max(role.Steepest, memory), max(role.MoreFiles, files)
		role.MoreThreads = max(role.MoreThreads, threads)
		if span >= judgedSpan {
			parts := [2]float64{Slope(u.warm(u.anonymous)), Slope(u.warm(u.files))}
			bad = append(bad, grown(u.role, p.PID, memory, parts, files, threads)...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byRole)) {
		byRole[name].Median = Quantile(slopes[name], 0.5)
		out = append(out, *byRole[name])
	}
	return out, bad
}

// grown judges the slopes of one process. The parts of the memory's slope are anonymous memory and pages of files.
func grown(role string, pid int, memory float64, parts [2]float64, files, threads float64) (bad []string) {
	if memory > memoryLimit {
		bad = append(bad, fmt.Sprintf("resources: %s, process %d, grows by %.2f MB/h (%.2f anonymous, %.2f of files): limit %.0f MB/h", role, pid,
			memory, parts[0], parts[1], memoryLimit))
	}
	if files > countLimit || threads > countLimit {
		bad = append(bad, fmt.Sprintf("resources: %s, process %d, has %.1f descriptors and %.1f threads more an hour: limit %.0f", role, pid,
			files, threads, countLimit))
	}
	return bad
}

func most(s []Sample) float64 {
	out := 0.0
	for _, v := range s {
		out = max(out, v.Value)
	}
	return out
}

// warm leaves out the samples of the warm-up.
func (u *usage) warm(s []Sample) []Sample {
	if len(s) == 0 {
		return nil
	}
	warmUp := warmUp
	if u.role == supervisorRole {
		warmUp = storeWarmUp
	}
	i := slices.IndexFunc(s, func(v Sample) bool { return v.At >= s[0].At+warmUp })
	if i < 0 {
		return nil
	}
	return s[i:]
}

func spanOf(s []Sample) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].At - s[0].At
}
