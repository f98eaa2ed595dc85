package process

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/internal/executor/process/powertest"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/fault"
)

// controllerAt returns the emulator as a node's controller.
func controllerAt(e *powertest.Emulator) Controller {
	return Controller{Kind: methodRedfish, Address: e.URL, System: powertest.System, Username: "root",
		PasswordFile: filepath.Join(e.Dir, "password"), CAFile: filepath.Join(e.Dir, "ca.pem")}
}

// lookAt makes one look as the process does. Its time limit is far longer than even a busy machine needs.
func lookAt(t *testing.T, p *controllerPlace, full bool) controller.Answer {
	t.Helper()
	return lookWithin(t, p, full, time.Minute)
}

// silence is the time limit of a look at a controller that may never answer.
const silence = 5 * time.Second

// lookWithin is lookAt with another time limit.
func lookWithin(t *testing.T, p *controllerPlace, full bool, limit time.Duration) controller.Answer {
	t.Helper()
	w, err := newWitness(ControllersConfig{Nodes: map[fault.NodeID]Controller{"n1": p.Controller}}, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.timeout = limit
	w.nodes["n1"] = p
	return w.read(t.Context(), controller.Ask{Node: "n1", Full: full})
}

func place(c Controller) *controllerPlace { return &controllerPlace{Controller: c} }

func TestRedfishWitnessReadsPowerHealthLogAndSensors(t *testing.T) {
	t.Parallel()
	e := powertest.New(t)
	e.Log(powertest.Entry{ID: "1", Created: "2026-03-01T10:00:00Z", Severity: "OK", Message: "System boot"},
		powertest.Entry{ID: "2", Created: "2026-03-01T11:00:00Z", Severity: "Critical", Message: "PSU 2 has lost its input"})
	e.Sensors(powertest.Sensor{Name: "Inlet", Celsius: 23.5, Health: "OK"}, powertest.Sensor{Name: "CPU 1", Celsius: 97, Health: "Critical"})
	e.Set("Off", "Critical")
	p := place(controllerAt(e))
	a := lookAt(t, p, true)
	if a.Finding != controller.Off || a.Health != controller.Critical {
		t.Errorf("%+v: want off and critical", a)
	}
	want := []string{"2026-03-01T10:00:00Z OK: System boot", "2026-03-01T11:00:00Z Critical: PSU 2 has lost its input"}
	if !slices.Equal(a.Log, want) {
		t.Errorf("log %q: want %q", a.Log, want)
	}
	if want := []string{"CPU 1 97 °C: Critical", "PSU 2, input 0 V: Critical", "Inlet 23.5 °C: OK",
		"PSU 1, input 230.4 V: OK"}; !slices.Equal(a.Sensors, want) {
		t.Errorf("sensors %q: want %q", a.Sensors, want)
	}
	e.Set("On", "OK")
	if a := lookAt(t, p, false); a.Finding != controller.On || a.Health != controller.Good || a.Log != nil || a.Sensors != nil {
		t.Errorf("a short look: %+v", a)
	}
	for power, want := range map[string]controller.Finding{"PoweringOn": controller.On, "PoweringOff": controller.On, "Paused": controller.On,
		"": controller.Wrong, "Melted\x1b[2J": controller.Wrong} {
		e.Set(power, "Odd")
		if a := lookAt(t, p, false); a.Finding != want || a.Health != 0 || strings.Contains(a.Detail, "\x1b") {
			t.Errorf("power %q: %+v: want %s", power, a, want)
		}
	}
	if n := e.Others(); n != 0 {
		t.Errorf("%d requests that are not GET: a witness only reads", n)
	}
}

// TestRedfishLogShowsEachEntryOnce: over pages, with a clock that goes back, with doubled entries, and with an end that moves.
func TestRedfishLogShowsEachEntryOnce(t *testing.T) {
	t.Parallel()
	e := powertest.New(t)
	entry := func(i int, created string) powertest.Entry {
		out := event(i)
		out.Created = created
		return out
	}
	for i := range 120 {
		e.Log(event(i))
	}
	p := place(controllerAt(e))
	if a := lookAt(t, p, true); len(a.Log) != controller.MaxLines || !strings.HasSuffix(a.Log[7], "event 119") {
		t.Errorf("the first look: %q: want the newest, from the third page, last", a.Log)
	}
	if a := lookAt(t, p, true); len(a.Log) != 0 {
		t.Errorf("nothing new: %q", a.Log)
	}
	e.Log(entry(120, "1970-01-01T00:00:07Z"), entry(121, "not a time"), entry(121, "not a time"))
	if a := lookAt(t, p, true); len(a.Log) != 2 || !strings.HasSuffix(a.Log[0], "event 121") || !strings.HasSuffix(a.Log[1], "event 120") {
		t.Errorf("after the clock went back: %q: want both events, once", a.Log)
	}
	e.Instead(powertest.Entries, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) })
	if a := lookAt(t, p, true); a.Finding != controller.On || len(a.Log) != 0 {
		t.Errorf("without a log: %+v: want the power state all the same", a)
	}
	e.Instead(powertest.Entries, nil)
	if a := lookAt(t, p, true); len(a.Log) != 0 {
		t.Errorf("the log is back: %q: want nothing twice", a.Log)
	}
}

// TestPartlyReadRedfishLogShowsNothingTwice: a page that cannot be read for one look makes no old entry new again.
func TestPartlyReadRedfishLogShowsNothingTwice(t *testing.T) {
	t.Parallel()
	e := powertest.New(t)
	for i := range 2 * powertest.PageSize {
		e.Log(event(i))
	}
	p := place(controllerAt(e))
	if a := lookAt(t, p, true); len(a.Log) != controller.MaxLines {
		t.Fatalf("the first look: %q", a.Log)
	}
	second := fmt.Sprintf("%s?$skip=%d", powertest.Entries, powertest.PageSize)
	asked := false
	e.Instead(second, func(w http.ResponseWriter, _ *http.Request) {
		asked = true
		http.Error(w, "busy", http.StatusServiceUnavailable)
	})
	if a := lookAt(t, p, true); len(a.Log) != 0 || !asked {
		t.Errorf("without its second page: %q, asked %t: want nothing new", a.Log, asked)
	}
	e.Instead(second, nil)
	if a := lookAt(t, p, true); len(a.Log) != 0 {
		t.Errorf("the second page is back: %q: want nothing twice", a.Log)
	}
}

// TestLongRedfishLogShowsNewestEntries: of a log with more pages than a look reads, in both orders, also when the log is full and each new
// entry replaces the oldest.
func TestLongRedfishLogShowsNewestEntries(t *testing.T) {
	t.Parallel()
	const long, justLong = 9*powertest.PageSize + 7, maxPages*powertest.PageSize + 1
	firstPage := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"Members":[{"Id":"0","Created":%q,"Severity":"OK","Message":"event 0"}]}`, created(0))
	}
	for name, tc := range map[string]struct {
		entries     int
		newestFirst bool
		tail        http.HandlerFunc // instead of the page that a look skips to; nil: the controller's
		first, next string           // newest line of the first look, and of one after another entry
	}{
		"newest first":    {long, true, nil, "event 456", "event 457"},
		"oldest first":    {long, false, nil, "event 456", "event 457"},
		"one page more":   {justLong, false, nil, "event 200", "event 201"},
		"skips no entry":  {long, false, statusOnly(http.StatusNotImplemented), "event 199", ""},
		"$skip is wrong":  {long, false, statusOnly(http.StatusBadRequest), "event 199", ""},
		"ignores $skip":   {long, false, firstPage, "event 199", ""},
		"busy, then not":  {long, false, statusOnly(http.StatusServiceUnavailable), "", "event 457"},
		"asks to wait":    {long, false, statusOnly(http.StatusTooManyRequests), "", "event 457"},
		"an empty answer": {long, false, text(`{}`), "event 199", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := powertest.New(t)
			if tc.newestFirst {
				e.NewestFirst()
			}
			for i := range tc.entries {
				e.Log(event(i))
			}
			tail := fmt.Sprintf("%s?$skip=%d", powertest.Entries, tc.entries-newestPages*powertest.PageSize)
			if tc.tail != nil {
				e.Instead(tail, tc.tail)
			}
			p := place(controllerAt(e))
			newest := func(a controller.Answer) string {
				if len(a.Log) == 0 {
					return ""
				}
				_, message, _ := strings.Cut(a.Log[len(a.Log)-1], ": ")
				return message
			}
			if a := lookAt(t, p, true); newest(a) != tc.first {
				t.Errorf("the first look: %q: want %q last", a.Log, tc.first)
			}
			if a := lookAt(t, p, true); len(a.Log) != 0 {
				t.Errorf("nothing new: %q", a.Log)
			}
			if tc.tail != nil && tc.next != "" {
				e.Instead(tail, nil)
			}
			e.Forget(1)
			e.Log(event(tc.entries))
			switch a := lookAt(t, p, true); {
			case tc.next == "" && tc.tail != nil: // its newest entries are out of reach
			case newest(a) != tc.next || tc.first != "" && len(a.Log) != 1:
				t.Errorf("after another entry: %q: want %q", a.Log, tc.next)
			}
		})
	}
}

func created(i int) string { return time.Unix(int64(1_700_000_000+i), 0).UTC().Format(time.RFC3339) }

// event returns an entry of the event log.
func event(i int) powertest.Entry {
	return powertest.Entry{ID: fmt.Sprint(i), Created: created(i), Severity: "OK", Message: fmt.Sprintf("event %d", i)}
}

// TestOrderOfRedfishLogIsKnownDespiteItsClock: one step of the clock changes nothing, and without times the numbers count.
func TestOrderOfRedfishLogIsKnownDespiteItsClock(t *testing.T) {
	t.Parallel()
	page := func(at func(i int) (id, created string)) []logEntry {
		out := make([]logEntry, powertest.PageSize)
		for i := range out {
			out[i].ID, out[i].Created = at(i)
		}
		return out
	}
	for name, tc := range map[string]struct {
		entries []logEntry
		want    bool
	}{
		"by time":                     {page(func(i int) (string, string) { return "x", created(i) }), true},
		"clock back":                  {page(func(i int) (string, string) { return "x", created((i+20)%powertest.PageSize - i/30*1e6) }), true},
		"newest first, clock back":    {page(func(i int) (string, string) { return fmt.Sprint(i), created(-i - i/30*1e6) }), false},
		"newest first, clock forward": {page(func(i int) (string, string) { return "x", created(-i + i/30*1e6) }), false},
		"by number":                   {page(func(i int) (string, string) { return fmt.Sprint(i), "" }), true},
		"by number, newest first":     {page(func(i int) (string, string) { return fmt.Sprint(100 - i), "not a time" }), false},
		"neither":                     {page(func(int) (string, string) { return "x", "" }), false},
		"one":                         {[]logEntry{{ID: "1"}}, false},
		"none":                        {nil, false},
	} {
		if got := oldestFirst(tc.entries); got != tc.want {
			t.Errorf("%s: oldest first %t: want %t", name, got, tc.want)
		}
	}
}

// TestFaultOfThisHostIsNotSilence: without names, descriptors or a route nobody has asked the controller.
func TestFaultOfThisHostIsNotSilence(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for inner, want := range map[error]controller.Finding{
		&net.DNSError{Err: "no such host", Name: "bmc1"}:                    controller.Wrong,
		&net.DNSError{Err: "i/o timeout", IsTimeout: true}:                  controller.Wrong,
		&os.SyscallError{Syscall: "socket", Err: syscall.EMFILE}:            controller.Wrong,
		&os.SyscallError{Syscall: "socket", Err: syscall.ENFILE}:            controller.Wrong,
		&os.SyscallError{Syscall: "connect", Err: syscall.ENETUNREACH}:      controller.Wrong,
		&os.SyscallError{Syscall: "connect", Err: syscall.EHOSTUNREACH}:     controller.Silent,
		&os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}:     controller.Silent,
		&os.SyscallError{Syscall: "connect", Err: context.DeadlineExceeded}: controller.Silent,
	} {
		err := &url.Error{Op: "Get", URL: "https://bmc1", Err: &net.OpError{Op: "dial", Net: "tcp", Err: inner}}
		for _, ctx := range []context.Context{t.Context(), ended} {
			if got := silentOrWrong(ctx, err); got != want {
				t.Errorf("%v (context: %v): %s: want %s", err, ctx.Err(), got, want)
			}
		}
	}
}

// TestHostileRedfishEndsAsError: endless and giant answers, other hosts, loops, wrong types, and refused passwords. Each ends within the
// timeout as an answer of this controller, or leaves its power state as it is.
func TestHostileRedfishEndsAsError(t *testing.T) {
	t.Parallel()
	stranger := powertest.New(t)
	giant := strings.Repeat("9", 4096)
	for name, tc := range map[string]struct {
		path    string
		answer  http.HandlerFunc
		finding controller.Finding
		detail  string
	}{
		"giant system": {powertest.System, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"PowerState":"On","Name":"`)
			for range 1024 {
				_, _ = io.WriteString(w, giant)
			}
			_, _ = io.WriteString(w, `"}`)
		}, controller.Wrong, "longer than 1048576 bytes"},
		"no JSON":          {powertest.System, text("<html>log in</html>"), controller.Wrong, "invalid character"},
		"no power state":   {powertest.System, text(`{"Id":"1"}`), controller.Wrong, "no power state in its answer"},
		"wrong types":      {powertest.System, text(`{"PowerState":7}`), controller.Wrong, "cannot unmarshal"},
		"refused password": {powertest.System, statusOnly(http.StatusUnauthorized), controller.Wrong, "401"},
		"redirect": {powertest.System, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, stranger.URL+powertest.System, http.StatusTemporaryRedirect)
		}, controller.Wrong, ""},
		"dropped connection": {powertest.System, func(w http.ResponseWriter, _ *http.Request) { hijack(w, "") }, controller.Wrong, "EOF"},
		"no HTTP": {powertest.System, func(w http.ResponseWriter, _ *http.Request) { hijack(w, "\x00\x01\r\n\r\n") },
			controller.Wrong, ""},
		"giant header": {powertest.System, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-A", strings.Repeat("a", 1<<20))
		}, controller.Wrong, ""},
		"log elsewhere": {powertest.System + "/LogServices", text(`{"Members":[{"@odata.id":"` + stranger.URL + `/redfish/v1/x"}]}`),
			controller.On, ""},
		"log above": {powertest.System + "/LogServices", text(`{"Members":[{"@odata.id":"/redfish/v1/../../secret"}]}`),
			controller.On, ""},
		"log that loops": {powertest.Entries, text(`{"Members":[{"Id":"1"}],"Members@odata.nextLink":"` + powertest.Entries + `"}`),
			controller.On, ""},
		"log of wrong types": {powertest.Entries, text(`{"Members":[{"Id":{}}]}`), controller.On, ""},
		"sensors": {powertest.Chassis + "/Thermal", text(`{"Temperatures":[{"Name":"` + giant + `","ReadingCelsius":1e300}]}`),
			controller.On, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := powertest.New(t)
			e.Instead(tc.path, tc.answer)
			a := lookAt(t, place(controllerAt(e)), true)
			if a.Finding != tc.finding || !strings.Contains(a.Detail, tc.detail) {
				t.Errorf("%+v: want %s, %q", a, tc.finding, tc.detail)
			}
		})
	}
	t.Cleanup(func() {
		if n := stranger.Requests(); n > 0 {
			t.Errorf("%d requests to another host", n)
		}
	})
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

func statusOnly(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// hijack writes bytes to a connection and closes it.
func hijack(w http.ResponseWriter, s string) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_, _ = io.WriteString(c, s)
		_ = c.Close()
	}
}

// TestSilentRedfishIsNotOff: no listener, and answers that never come or end, are silence: never "off", and never longer than the timeout.
func TestSilentRedfishIsNotOff(t *testing.T) {
	t.Parallel()
	gone := controllerAt(powertest.New(t))
	gone.Address = "https://" + freeport.Addr(t).String()
	if a := lookAt(t, place(gone), true); a.Finding != controller.Silent || !strings.Contains(a.Detail, "refused") {
		t.Errorf("no listener: %+v", a)
	}
	for name, h := range map[string]http.HandlerFunc{
		"hangs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"drips": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		},
	} {
		e := powertest.New(t)
		e.Instead(powertest.System, h)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		p := place(controllerAt(e))
		_, err := p.readRedfish(ctx, "calvin", true)
		if err == nil || silentOrWrong(ctx, err) != controller.Silent {
			t.Errorf("%s: %v: want silence", name, err)
		}
		cancel()
	}
}

func TestControllerCertificateIsChecked(t *testing.T) {
	t.Parallel()
	e := powertest.New(t)
	sum := sha256.Sum256(e.Certificate().Raw)
	pin := hex.EncodeToString(sum[:])
	for name, tc := range map[string]struct {
		ca, pin string
		want    controller.Finding
		detail  string
	}{
		"authority":            {filepath.Join(e.Dir, "ca.pem"), "", controller.On, ""},
		"the host's":           {"", "", controller.Wrong, "certificate"},
		"pin":                  {"", strings.ToUpper(pin), controller.On, ""},
		"pin of another":       {"", strings.Repeat("ab", 32), controller.Wrong, "not the pinned certificate"},
		"authority of another": {otherCA(t), "", controller.Wrong, "certificate"},
	} {
		c := controllerAt(e)
		c.CAFile, c.Pin = tc.ca, tc.pin
		if a := lookAt(t, place(c), false); a.Finding != tc.want || !strings.Contains(a.Detail, tc.detail) {
			t.Errorf("%s: %+v: want %s, %q", name, a, tc.want, tc.detail)
		}
	}
}

// otherCA returns the certificate of an authority that has signed nothing.
func otherCA(t *testing.T) string {
	t.Helper()
	ca, err := pki.NewCA("other")
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err == nil {
		err = ca.Save(path, path+".key")
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// FuzzControllerAnswers: for any answers of a controller, a look ends as an answer of it, in bounded text, and it only reads.
func FuzzControllerAnswers(f *testing.F) {
	const system = `{"@odata.id":"` + powertest.System + `","PowerState":"On","Status":{"Health":"OK"},"LogServices":{"@odata.id":"` +
		powertest.System + `/LogServices"},"Links":{"Chassis":[{"@odata.id":"` + powertest.Chassis + `"}]}}`
	f.Add(system, `{"Members":[{"@odata.id":"`+powertest.System+`/LogServices/SEL"}]}`)
	f.Add(system, `{"Entries":{"@odata.id":"`+powertest.Entries+`"},"Members":[{"Id":"1","Message":"\u001b[2J"}],"Members@odata.nextLink":"`+
		powertest.Entries+`"}`)
	f.Add(system, `{"Temperatures":[{"Name":"a","ReadingCelsius":null}],"PowerSupplies":[{"Name":"b","LineInputVoltage":1e308}]}`)
	f.Add(system, `{"Members":[{"Name":"a","Reading":1e308,"ReadingUnits":"Cel","Status":{"State":"Enabled","Health":"\u001b"}},`+
		`{"@odata.id":"`+powertest.Sensors+`/1"},{"Reading":"x"}],"Members@odata.nextLink":"`+powertest.Sensors+`"}`)
	for _, count := range []string{"1e300", "-1e300", "457", `"457"`, "9223372036854775807"} {
		f.Add(system, `{"Entries":{"@odata.id":"`+powertest.Entries+`"},"Members":[{"Id":"1","@odata.id":"`+powertest.Entries+
			`"},{"Id":"2"}],"Members@odata.count":`+count+`}`)
	}
	f.Add(`{"PowerState":[]}`, `null`)
	e := powertest.New(f)
	f.Fuzz(func(t *testing.T, system, other string) {
		e.Instead("", func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == powertest.Chassis+"/Thermal" && strings.Contains(other, "Members"):
				w.WriteHeader(http.StatusNotFound) // so that the look reads the collection
			case r.URL.Path == powertest.System:
				_, _ = io.WriteString(w, system)
			case r.URL.Path == "/redfish/v1/":
				_, _ = io.WriteString(w, `{"@odata.id":"/redfish/v1/","ProtocolFeaturesSupported":{"ExpandQuery":{"NoLinks":true}}}`)
			default:
				_, _ = io.WriteString(w, other)
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		a, err := place(controllerAt(e)).readRedfish(ctx, "calvin", true)
		if err == nil && !a.Finding.Plain() || len(a.Log) > controller.MaxLines || len(a.Sensors) > controller.MaxLines {
			t.Errorf("%+v, %v", a, err)
		}
		for _, s := range slices.Concat(a.Log, a.Sensors) {
			if len(s) > 4*controller.MaxText {
				t.Errorf("%d bytes: %.80q", len(s), s)
			}
		}
		if n := e.Others(); n != 0 {
			t.Errorf("%d requests that are not GET", n)
		}
	})
}
