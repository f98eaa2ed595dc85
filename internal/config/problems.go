package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// interfaceName, like the other regular expressions of this package, compiles on its first use, so that most starts skip
// it.
var interfaceName = lazily(`^[^/\s:]{1,15}$`)

func lazily(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// problems collects errors, each as "field: given X: want Y".
type problems struct{ errs []error }

func (p *problems) bad(field string, given any, want string, args ...any) {
	if s, ok := given.(string); ok && s == "" {
		given = "nothing"
	}
	p.errs = append(p.errs, errors.New(ShortTimes(fmt.Sprintf("%s: given %v: want %s", field, given, fmt.Sprintf(want, args...)))))
}

// zeroUnits matches the units that Go appends to a duration of whole hours or minutes.
var zeroUnits = lazily(`(\d)(h0m0s|m0s)\b`)

// ShortTimes writes the durations in a text as people give them: 1h and 5m, not 1h0m0s and 5m0s.
func ShortTimes(text string) string {
	return zeroUnits().ReplaceAllStringFunc(text, func(s string) string { return s[:2] })
}

// wrap adds an error that already names the given and the expected value.
func (p *problems) wrap(field string, err error) {
	if err != nil {
		p.errs = append(p.errs, fmt.Errorf("%s: %w", field, err))
	}
}

// within adds the errors of a part of the configuration, which name their own fields.
func (p *problems) within(field string, err error) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			p.errs = append(p.errs, fmt.Errorf("%s.%w", field, e))
		}
		return
	}
	p.wrap(field, err)
}

func (p *problems) add(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

func (p *problems) err() error { return errors.Join(p.errs...) }

func (p *problems) cluster(v string) {
	if !fault.IsNameWith(v, false, "-.") {
		p.bad("cluster", v, "1 to 63 of a-z, 0-9, '-' and '.', the first and last a letter or digit")
	}
}

func (p *problems) name(field, v string) {
	if !fault.IsName(v) {
		p.bad(field, v, "1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit")
	}
}

func (p *problems) path(field, v string) {
	if v == "" {
		p.bad(field, v, "the path of a file")
	}
}

func (p *problems) oneOf(field, v string, want ...string) {
	if !slices.Contains(want, v) {
		p.bad(field, v, "one of %s", strings.Join(want, ", "))
	}
}

func (p *problems) iface(field, v string) {
	if v != "" && !interfaceName().MatchString(v) {
		p.bad(field, v, "a network interface's name, 1 to 15 characters, or nothing")
	}
}

func (p *problems) log(l LogConfig) {
	p.oneOf("log.level", l.Level, "debug", "info", "warn", "error")
	p.oneOf("log.format", l.Format, "text", "json")
}

// listen checks an address to listen on.
func (p *problems) listen(field, v string) (netip.AddrPort, bool) {
	ap, err := netip.ParseAddrPort(v)
	if err != nil || ap.Port() == 0 {
		p.bad(field, v, `"ip:port", port 1 to 65535`)
		return ap, false
	}
	return ap, true
}

// remote checks an address to send to.
func (p *problems) remote(field, v string) {
	if ap, ok := p.listen(field, v); ok && ap.Addr().IsUnspecified() {
		p.bad(field, v, "the address of one host, not %s", ap.Addr())
	}
}

func (p *problems) url(field, v string) {
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "https" || u.Port() == "" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		p.bad(field, v, `"https://host:port"`)
	}
}

// webURL is where browsers go: by TLS, or to this very machine.
func (p *problems) webURL(field, v string) {
	u, err := url.Parse(v)
	if err == nil && u.Host != "" && u.User == nil && (u.Path == "" || u.Path == "/") && u.RawQuery == "" && u.Fragment == "" {
		ip, notIP := netip.ParseAddr(u.Hostname())
		if u.Scheme == "https" || u.Scheme == "http" && notIP == nil && ip.IsLoopback() {
			return
		}
	}
	p.bad(field, v, "https://host:port, or http://IP:port of a loopback address")
}

func (p *problems) checksums(list string, names []string) {
	if len(names) == 0 {
		p.bad(list, "", "at least one, such as %s", servicenet.ChecksumName(servicenet.DefaultChecksum))
	}
	for i, name := range names {
		field := fmt.Sprintf("%s[%d]", list, i)
		if _, err := servicenet.ParseChecksum(name); err != nil {
			p.wrap(field, err)
		}
		if slices.Contains(names[:i], name) {
			p.bad(field, name, "each checksum once")
		}
	}
}

func (p *problems) gossip(prefix, listen, keyFile string, joins []string) {
	if listen == "" {
		return
	}
	p.listen(prefix+"gossipListen", listen)
	p.path(prefix+"gossipKeyFile", keyFile)
	for i, j := range joins {
		p.remote(fmt.Sprintf("%sgossipJoin[%d]", prefix, i), j)
	}
}
