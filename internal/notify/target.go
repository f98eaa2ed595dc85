// Package notify describes the targets of notifications that operators add with `lofamoctl notify add`: where messages go, in which form,
// and what signs them. It sends nothing: internal/executor/webhook and internal/executor/alertmanager do.
package notify

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Format is the form of the messages to a target.
type Format string

// The formats.
const (
	Generic      Format = "generic"
	Slack        Format = "slack"
	Teams        Format = "teams"
	Alertmanager Format = "alertmanager"
)

// Formats returns all formats.
func Formats() []Format { return []Format{Generic, Slack, Teams, Alertmanager} }

// Target is a receiver of notifications. Its URL and its secret are credentials: they belong in no log, no answer and no error.
type Target struct {
	Name   string
	URL    string
	Format Format
	Secret string // signs messages, "whsec_" and base64; empty: nothing does
}

// Bounds of a target.
const (
	// MaxTargets bounds the number of targets.
	MaxTargets = 64
	// MaxName is shorter than the name of a policy, because policies are named after targets.
	MaxName = 50
	maxURL  = 2048
	// RequestTimeout bounds one request to a target.
	RequestTimeout = 10 * time.Second
)

// CheckName refuses a name that a target cannot have.
func CheckName(name string) error {
	if !fault.IsNameWith(name, false, "-.") || len(name) > MaxName {
		return fmt.Errorf("name: given %.63q: want 1 to %d of a-z, 0-9, '-' and '.', the first and last a letter or digit", name, MaxName)
	}
	return nil
}

// Validate names every bad field at once. Its error quotes neither the URL nor the secret.
func (t Target) Validate() error {
	errs := []error{CheckName(t.Name)}
	if !slices.Contains(Formats(), t.Format) {
		errs = append(errs, fmt.Errorf("format: given %.20q: want %s", string(t.Format), fault.List(Formats())))
	}
	errs = append(errs, t.checkURL())
	if t.Secret != "" {
		_, err := ParseSecret(t.Secret)
		if t.Format != Generic {
			err = fmt.Errorf("secret: given one with the format %s: want none, because only receivers of the format %s check signatures",
				t.Format, Generic)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (t Target) checkURL() error {
	bad := func(what string) error {
		return fmt.Errorf("url: given %s: want http:// or https:// with a host, at most %d bytes, without user, password and fragment", what,
			maxURL)
	}
	u, err := url.Parse(t.URL)
	switch {
	case t.URL == "":
		return bad("nothing")
	case len(t.URL) > maxURL:
		return bad(fmt.Sprintf("%d bytes", len(t.URL)))
	case err != nil || strings.ContainsFunc(t.URL, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return bad("a text that is no URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad(fmt.Sprintf("the scheme %.20q", u.Scheme))
	case u.Hostname() == "" || u.Opaque != "":
		return bad("one without a host")
	case u.User != nil:
		return bad("one with a user")
	case u.Fragment != "":
		return bad("one with a fragment")
	case t.Format == Alertmanager && u.RawQuery != "":
		return fmt.Errorf("url: given one with a query: want the address of an Alertmanager, such as http://alertmanager:9093")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := CheckAddress(ip); err != nil {
			return fmt.Errorf("url: %w", err)
		}
	}
	return nil
}

// elsewhere are prefixes that lead to any IPv4 address, link-local ones too, or to a cloud's credentials.
var elsewhere = []netip.Prefix{
	netip.MustParsePrefix("64:ff9b::/96"), // RFC 6052
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2001::/32"),     // Teredo (RFC 4380)
	netip.MustParsePrefix("2002::/16"),     // 6to4 (RFC 3056)
	netip.MustParsePrefix("fd00:ec2::/32"), // the instance metadata of Amazon's machines
}

// CheckAddress returns an error for an address that no target may have: link-local addresses and others where clouds serve the credentials
// of their machines, and addresses of no single machine. Private addresses and loopback are allowed: operators chose them.
func CheckAddress(ip netip.Addr) error {
	ip = ip.Unmap().WithZone("")
	leads := slices.ContainsFunc(elsewhere, func(p netip.Prefix) bool { return p.Contains(ip) })
	if leads || !ip.IsGlobalUnicast() && !ip.IsLoopback() {
		return fmt.Errorf("address %s: want that of one machine, and no link-local one", ip)
	}
	return nil
}

// Host returns the host of the URL, and the port if it has one.
func (t Target) Host() string {
	u, err := url.Parse(t.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

// Fingerprint tells URLs apart without showing them.
func (t Target) Fingerprint() string {
	sum := sha256.Sum256([]byte(t.URL))
	return hex.EncodeToString(sum[:4])
}

const (
	secretPrefix = "whsec_"
	minSecret    = 24 // bytes
	maxSecret    = 64 // bytes
)

// ParseSecret reads a secret as Standard Webhooks write it.
func ParseSecret(text string) ([]byte, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(text), secretPrefix)
	secret, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(secret) < minSecret || len(secret) > maxSecret {
		return nil, fmt.Errorf("secret: want %s and %d to %d bytes in base64", secretPrefix, minSecret, maxSecret)
	}
	return secret, nil
}
