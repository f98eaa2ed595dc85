package process

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/schemas"

	"github.com/lofamo/lofamo/internal/executor/controller"
)

// maxLook bounds one answer of a controller that is read, in bytes.
const maxLook = 1 << 20

// Limits of a look at the event logs of a system.
const (
	maxLogs        = 2    // logs
	maxPages       = 4    // of each log
	newestPages    = 2    // of a longer log whose oldest entries come first
	maxEntriesRead = 1024 // of each log
)

// lookTransport sends only GET, and ends an answer that is too long with an error.
type lookTransport struct{ base http.RoundTripper }

func (t lookTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		return nil, fmt.Errorf("%s: a witness only reads", req.Method)
	}
	resp, err := t.base.RoundTrip(req)
	if err == nil {
		resp.Body = &shortBody{ReadCloser: resp.Body, left: maxLook}
	}
	return resp, err
}

type shortBody struct {
	io.ReadCloser

	left int
}

func (b *shortBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.left -= n; b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// tls returns the check of the controller's certificate: by pin, or by authorities and name.
func (c Controller) tls() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.Pin == "" {
		var err error
		conf.RootCAs, err = authoritiesIn(c.CAFile)
		return conf, err
	}
	conf.InsecureSkipVerify = true // VerifyConnection replaces it
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		sum := sha256.Sum256(s.PeerCertificates[0].Raw)
		if got := hex.EncodeToString(sum[:]); !strings.EqualFold(got, c.Pin) {
			return fmt.Errorf("not the pinned certificate, but SHA-256 %s", got)
		}
		return nil
	}
	return conf, nil
}

// readRedfish reads the power state and health, and in a full look the event log, temperatures and power supplies. Only a failure
// to read the power state is an error.
func (p *controllerPlace) readRedfish(ctx context.Context, password string, full bool) (controller.Answer, error) {
	conf, err := p.tls()
	if err != nil {
		return controller.Answer{}, err
	}
	base := &http.Transport{TLSClientConfig: conf, MaxResponseHeaderBytes: 64 << 10, MaxConnsPerHost: 1, ForceAttemptHTTP2: false}
	defer base.CloseIdleConnections()
	c, err := gofish.ConnectContext(ctx, gofish.ClientConfig{
		Endpoint: strings.TrimSuffix(p.Address, "/"), Username: p.Username, Password: password, BasicAuth: true,
		NoModifyTransport: true, ReuseConnections: true,
		HTTPClient: &http.Client{Transport: lookTransport{base}, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // do not send the password to another server
		}},
	})
	if err != nil {
		return controller.Answer{}, err
	}
	system, err := schemas.GetComputerSystem(c, p.System)
	if err != nil {
		return controller.Answer{}, err
	}
	var a controller.Answer
	switch system.PowerState {
	case schemas.OffPowerState:
		a.Finding = controller.Off
	case schemas.OnPowerState, schemas.PoweringOnPowerState, schemas.PoweringOffPowerState, schemas.PausedPowerState:
		a.Finding = controller.On
	default:
		return a, fmt.Errorf("%w: PowerState %q", errNoPower, controller.Clean(string(system.PowerState)))
	}
	switch system.Status.Health {
	case schemas.OKHealth:
		a.Health = controller.Good
	case schemas.WarningHealth:
		a.Health = controller.Warning
	case schemas.CriticalHealth:
		a.Health = controller.Critical
	}
	if full {
		log, chassis := decodeLinks(system.RawData)
		a.Log = p.redfishLog(c, log)
		if chassis != "" {
			ctx, cancel := halfOf(ctx)
			defer cancel()
			a.Sensors = sensorsOf(c.WithContext(ctx), strings.TrimSuffix(chassis, "/"))
		}
	}
	return a, nil
}

// halfOf returns a context with half of the time that ctx has left: slow sensors must not hold up the power state.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/2)
}

// link is a reference to another resource.
type link struct {
	ID string `json:"@odata.id"`
}

// decodeLinks returns the paths of a system's log services and of its first chassis; empty if there are none.
func decodeLinks(system []byte) (logServices, chassis string) {
	var raw struct {
		LogServices link
		Links       struct{ Chassis []link }
	}
	if json.Unmarshal(system, &raw) != nil {
		return "", ""
	}
	if len(raw.Links.Chassis) > 0 {
		chassis = raw.Links.Chassis[0].ID
	}
	return raw.LogServices.ID, chassis
}

// get reads a resource of this service. It does not follow a path that leads elsewhere.
func get(c *gofish.APIClient, path string, into any) error {
	if u, err := url.Parse(path); err != nil || u.Host != "" || u.Scheme != "" || !strings.HasPrefix(path, "/redfish/v1/") ||
		strings.Contains(u.Path, "..") {
		return fmt.Errorf("%s: %w", controller.Clean(path), errElsewhere)
	}
	resp, err := c.Get(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

var errElsewhere = errors.New("the path leads elsewhere")

// logEntry is an entry of an event log: LogEntry in the schema.
type logEntry struct {
	ID       string `json:"Id"`
	Created  string
	Severity string
	Message  string
}

// at returns the time of the entry by the controller's clock; zero if it states none.
func (e logEntry) at() time.Time {
	t, _ := time.Parse(time.RFC3339, e.Created)
	return t
}

// number returns the entry's Id if it is a number; 0 otherwise.
func (e logEntry) number() int {
	n, _ := strconv.Atoi(e.ID)
	return n
}

// logPage is a page of a log: LogEntryCollection in the schema.
type logPage struct {
	Members []logEntry
	Count   any    `json:"Members@odata.count"` // a number: of the entries in all pages
	Next    string `json:"Members@odata.nextLink"`
}

// maxCount bounds the believed number of entries of a log.
const maxCount = 1 << 30

// count returns the number of entries in all pages; 0 if the controller does not state one.
func (p logPage) count() int {
	n, _ := p.Count.(float64)
	return int(max(0, min(n, maxCount)))
}

// oldestFirst reports whether most entries are newer than the entry before them. In a page of four or more entries, one step of the
// controller's clock changes nothing.
func oldestFirst(entries []logEntry) bool {
	newer := 0
	for i := 1; i < len(entries); i++ {
		a, b := entries[i-1], entries[i]
		newer += cmp.Or(b.at().Compare(a.at()), cmp.Compare(b.number(), a.number()))
	}
	return newer > 0
}

// readLog returns the entries of a log at a path. Of a log of more than maxPages pages it returns the first ones, or those of the last
// newestPages pages if the oldest entries come first and the controller can skip entries. complete is false if a page could not be read.
func readLog(c *gofish.APIClient, path string) (entries []logEntry, complete bool) {
	var page logPage
	if path == "" || get(c, path, &page) != nil {
		return nil, path == ""
	}
	if n := len(page.Members); page.count() > maxPages*n && oldestFirst(page.Members) {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		var last logPage
		switch err := get(c, fmt.Sprintf("%s%s$skip=%d", path, separator, page.count()-newestPages*n), &last); {
		case err == nil && len(last.Members) > 0 && last.Members[0].key() != page.Members[0].key():
			return last.follow(c)
		case err != nil && !cannotSkip(err):
			return nil, false // the next look tries again: the first pages have old entries
		}
	}
	return page.follow(c)
}

// cannotSkip reports whether a service answers that it does not skip entries, and not that it is busy.
func cannotSkip(err error) bool {
	switch code := httpStatus(err); code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500 || code == http.StatusNotImplemented
	}
}

// follow returns the entries of a page and of those after it, at most maxPages in all. complete is false if one of them could not be
// read.
func (p logPage) follow(c *gofish.APIClient) (entries []logEntry, complete bool) {
	entries = p.Members
	for pages := 1; p.Next != "" && pages < maxPages; pages++ {
		next := p.Next
		p = logPage{}
		if get(c, next, &p) != nil {
			return entries, false
		}
		entries = append(entries, p.Members...)
	}
	return entries, true
}

// redfishLog returns the entries that no earlier look has seen, oldest first by the controller's own clock, and at most MaxLines. Whether
// an entry is new depends on no clock: a controller that sets its clock back loses none.
func (p *controllerPlace) redfishLog(c *gofish.APIClient, services string) []string {
	var list struct{ Members []link }
	if get(c, services, &list) != nil {
		return nil
	}
	var all []logEntry
	complete := true
	for _, m := range list.Members[:min(len(list.Members), maxLogs)] {
		var log struct{ Entries link }
		if get(c, m.ID, &log) != nil {
			complete = false
			continue
		}
		entries, ok := readLog(c, log.Entries.ID)
		complete = complete && ok
		if n := len(entries); n > maxEntriesRead { // the newest are at one of its ends
			entries = slices.Concat(entries[:maxEntriesRead/2], entries[n-maxEntriesRead/2:])
		}
		all = append(all, entries...)
	}
	var fresh []logEntry
	seen := make(map[uint64]struct{}, len(all))
	for _, e := range all {
		k := e.key()
		if _, twice := seen[k]; twice {
			continue
		}
		seen[k] = struct{}{}
		if _, old := p.seen[k]; !old {
			fresh = append(fresh, e)
		}
	}
	if !complete && len(p.seen) <= 2*maxLogs*maxEntriesRead { // the entries that this look has missed stay old
		maps.Copy(seen, p.seen)
	}
	if len(all) > 0 { // else its log could not be read
		p.seen = seen
	}
	slices.SortStableFunc(fresh, func(a, b logEntry) int { return cmp.Or(a.at().Compare(b.at()), cmp.Compare(a.ID, b.ID)) })
	var out []string
	for _, e := range fresh[max(0, len(fresh)-controller.MaxLines):] {
		out = append(out, strings.TrimSpace(controller.Clean(e.Created)+" "+controller.Clean(e.Severity)+": "+controller.Clean(e.Message)))
	}
	return out
}

// key names an entry across looks.
func (e logEntry) key() uint64 {
	h := fnv.New64a()
	for _, s := range []string{e.ID, e.Created, e.Message} {
		_, _ = h.Write([]byte(s))
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}
