// Package kerberos authenticates a Session to ZooKeeper servers that demand Kerberos (SASL
// GSSAPI), with a keytab, a password or a ticket cache:
//
//	mechanism, err := kerberos.Keytab("billing@EXAMPLE.ORG", "/etc/billing.keytab")
//	if err != nil {
//		return err
//	}
//	s, err := zsync.Connect(ctx, "zk1.example.org:2181,zk2.example.org:2181", zsync.WithSASL(mechanism))
//
// # Tickets
//
// Servers check a ticket when a connection begins. When the ticket ends, the connection, the
// session and the holds continue. For each connection, the mechanism gets new tickets from the KDC:
// it logs in with the keytab or the password, or reads the ticket cache again. The owner of the
// cache must renew the ticket in it (kinit -R, k5start, SSSD). If the KDC does not answer within a
// second, the mechanism uses the last ticket for that server until its end. So a session survives
// the loss of a connection while the KDC is down.
//
// # Names
//
// The principal of a server is zookeeper/_HOST. _HOST is the server's name in the connect string,
// in lower case. The mechanism does not use DNS, because DNS is not authenticated. See
// [WithService] and [WithCanonicalNames]. krb5.conf gives the realm of that name (domain_realm).
// The default is the client's realm.
//
// # Errors
//
// [Keytab], [Password] and [Cache] check their arguments. Later errors name the mechanism, GSSAPI. If
// the KDC or every server refuses the client, Connect fails, or the Session ends; the error matches
// go-zookeeper's ErrAuthFailed. If no KDC or no DNS server answers, or the ticket in a cache has ended
// since, the Session tries again until it expires.
//
// # Limits
//
// Each server proves that it has the key of its principal. After that, packets are neither
// encrypted nor signed: use TLS. The tickets must have keys of AES. Includes in krb5.conf are not
// read.
package kerberos

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/iana/nametype"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/sasl"
)

// An Option changes a default of [Keytab], [Password] and [Cache].
type Option func(*mechanism)

// WithService sets the principal of the servers, such as zookeeper/_HOST@EXAMPLE.ORG. The name of
// the server replaces _HOST. The default is zookeeper/_HOST.
func WithService(principal string) Option { return func(m *mechanism) { m.service = principal } }

// WithConfig names the configuration file. The default is the environment variable KRB5_CONFIG, or
// /etc/krb5.conf.
func WithConfig(file string) Option { return func(m *mechanism) { m.configFile = file } }

// WithCanonicalNames looks the name of the server's address up in DNS, as ZooKeeper's Java client
// does, and uses that name for _HOST. A connect string may then have addresses and aliases. But an
// attacker who forges DNS answers can send the client to another principal of the same service.
func WithCanonicalNames() Option { return func(m *mechanism) { m.canonical = true } }

// Keytab authenticates as principal, such as billing@EXAMPLE.ORG, with the key in a keytab file,
// which is read for each connection. If the principal has no realm, it gets the default realm of
// krb5.conf.
func Keytab(principal, file string, opts ...Option) (zsync.SASLMechanism, error) {
	m, err := newMechanism(principal, opts)
	if err != nil {
		return nil, err
	}
	m.client = func() (*client.Client, error) {
		kt, err := loadKeytab(file)
		if err != nil {
			return nil, fmt.Errorf("keytab %s: %w", file, err)
		}
		var has []string
		for _, e := range kt.Entries {
			has = append(has, strings.Join(e.Principal.Components, "/")+"@"+e.Principal.Realm)
		}
		if !slices.Contains(has, m.user+"@"+m.realm) {
			slices.Sort(has)
			return nil, fmt.Errorf("keytab %s: it has no key of %s@%s, but of: %s", file, m.user, m.realm, strings.Join(slices.Compact(has), ", "))
		}
		return client.NewWithKeytab(m.user, m.realm, kt, m.config, client.DisablePAFXFAST(true)), nil
	}
	if _, err := m.client(); err != nil {
		return nil, fmt.Errorf("kerberos: %w", err)
	}
	return m, nil
}

// Password authenticates as principal with a password. If the principal has no realm, it gets the
// default realm of krb5.conf.
func Password(principal, password string, opts ...Option) (zsync.SASLMechanism, error) {
	m, err := newMechanism(principal, opts)
	if err != nil {
		return nil, err
	}
	if password == "" {
		return nil, errors.New("kerberos: the password is empty")
	}
	m.client = func() (*client.Client, error) {
		return client.NewWithPassword(m.user, m.realm, password, m.config, client.DisablePAFXFAST(true)), nil
	}
	return m, nil
}

// Cache authenticates with the ticket that kinit has put into a file, which is read for each
// connection. The default for an empty name is the environment variable KRB5CCNAME, or
// /tmp/krb5cc_UID. Caches of other kinds (DIR, KCM, KEYRING) are not supported.
func Cache(file string, opts ...Option) (zsync.SASLMechanism, error) {
	m, err := newMechanism("", opts)
	if err != nil {
		return nil, err
	}
	file = cmp.Or(file, os.Getenv("KRB5CCNAME"), fmt.Sprintf("/tmp/krb5cc_%d", os.Getuid()))
	if kind, name, ok := strings.Cut(file, ":"); ok && len(kind) > 1 { // one letter is the name of a drive, on Windows
		if kind != "FILE" {
			return nil, fmt.Errorf("kerberos: ticket cache %s: only files are supported", file)
		}
		file = name
	}
	m.granting = func() (grant, error) {
		g, err := m.cached(file)
		if err != nil {
			return g, fmt.Errorf("ticket cache %s: %w: run kinit", file, err)
		}
		return g, nil
	}
	g, err := m.granting()
	if err != nil {
		return nil, fmt.Errorf("kerberos: %w", err)
	}
	m.user, m.realm = g.name.PrincipalNameString(), g.realm
	return m, nil
}

// The type `mechanism` creates an exchange for each connection of a Session.
type mechanism struct {
	service, configFile string
	canonical           bool
	config              *config.Config
	user, realm         string

	client   func() (*client.Client, error) // nil with a ticket cache
	granting func() (grant, error)          // reads the ticket of a cache; nil without a cache

	mu      sync.Mutex
	last    map[string]grant // by the server's principal
	granted bool             // the KDC has given a ticket for a server
	asked   time.Time        // when a request to the KDC began, the first since another has ended; zero if there is none
}

// The type `grant` is a ticket with its key, the time of its end, and its client.
type grant struct {
	ticket messages.Ticket
	key    types.EncryptionKey
	end    time.Time
	name   types.PrincipalName // the client's
	realm  string
	client *client.Client // gets further tickets with this ticket
}

func (g grant) valid() bool { return time.Now().Before(g.end) }

func newMechanism(principal string, opts []Option) (*mechanism, error) {
	m := &mechanism{service: "zookeeper/_HOST", last: make(map[string]grant)}
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("kerberos: option %d is nil", i)
		}
		o(m)
	}
	m.configFile = cmp.Or(m.configFile, os.Getenv("KRB5_CONFIG"), "/etc/krb5.conf")
	var err error
	m.config, err = config.Load(m.configFile)
	if err != nil && !errors.As(err, new(config.UnsupportedDirective)) {
		return nil, fmt.Errorf("kerberos: %w", err)
	}
	if name, _ := types.ParseSPNString(m.service); len(name.NameString) != 2 || slices.Contains(name.NameString, "") {
		return nil, fmt.Errorf("kerberos: WithService(%q): want SERVICE/HOST or SERVICE/HOST@REALM", m.service)
	}
	if principal == "" {
		return m, nil
	}
	name, realm := types.ParseSPNString(principal)
	m.user, m.realm = name.PrincipalNameString(), cmp.Or(realm, m.config.LibDefaults.DefaultRealm)
	switch {
	case slices.Contains(name.NameString, ""):
		return nil, fmt.Errorf("kerberos: the principal %q has an empty name", principal)
	case m.realm == "":
		return nil, fmt.Errorf("kerberos: the principal %q has no realm, and %s has no default_realm", principal, m.configFile)
	}
	return m, m.reachable(m.realm)
}

// The method `reachable` returns an error if the configuration has no KDC of a realm.
func (m *mechanism) reachable(realm string) error {
	known := slices.ContainsFunc(m.config.Realms, func(r config.Realm) bool { return r.Realm == realm && len(r.KDC) > 0 })
	if !known && !m.config.LibDefaults.DNSLookupKDC {
		return fmt.Errorf("kerberos: %s has no KDC of the realm %s", m.configFile, realm)
	}
	return nil
}

func (m *mechanism) Name() string { return "GSSAPI" }

// Because of Exchange, the exchanges of several connections may overlap, see [zsync.WithSASL].
func (m *mechanism) Exchange() sasl.Mechanism { return &exchange{m: m} }

// WithSASL does not call Start and Next of the mechanism: it uses exchanges.
func (m *mechanism) Start(string) ([]byte, error) { return nil, errors.New("use Exchange") }
func (m *mechanism) Next([]byte) ([]byte, error)  { return nil, errors.New("use Exchange") }

// The method `login` gets a ticket-granting ticket with the key or the password.
func (m *mechanism) login() (grant, error) {
	if m.granting != nil {
		return m.granting()
	}
	c, err := m.client()
	if err != nil {
		return grant{}, err
	}
	request, err := messages.NewASReqForTGT(m.realm, m.config, c.Credentials.CName())
	if err != nil {
		return grant{}, err
	}
	reply, err := c.ASExchange(m.realm, request, 0)
	if err != nil {
		return grant{}, err
	}
	return grant{reply.Ticket, reply.DecryptedEncPart.Key, reply.DecryptedEncPart.EndTime, c.Credentials.CName(), m.realm, c}, nil
}

// The method `fetch` gets a ticket for a server's principal from the KDC.
func (m *mechanism) fetch(server types.PrincipalName, realm string) (g grant, err error) {
	defer malformed(&err)
	g, err = m.login()
	if err != nil {
		return g, err
	}
	defer g.client.Destroy() // a referral may have started a goroutine, which Destroy ends
	if realm == "" {
		realm = g.realm
	}
	more := func(name types.PrincipalName, at string) error {
		_, reply, err := g.client.TGSREQGenerateAndExchange(name, at, g.ticket, g.key, false)
		g.ticket, g.key, g.end = reply.Ticket, reply.DecryptedEncPart.Key, reply.DecryptedEncPart.EndTime
		return err
	}
	if realm != g.realm {
		if err := m.reachable(realm); err != nil {
			return g, err
		}
		if err := more(types.PrincipalName{NameType: nametype.KRB_NT_SRV_INST, NameString: []string{"krbtgt", realm}}, g.realm); err != nil {
			return g, err
		}
	}
	err = more(server, realm)
	return g, err
}

// The method `cached` returns the ticket-granting ticket of a ticket cache.
func (m *mechanism) cached(file string) (grant, error) {
	cache, err := loadCache(file)
	if err != nil {
		return grant{}, err
	}
	realm := cache.GetClientRealm()
	tgt, ok := cache.GetEntry(types.PrincipalName{NameType: nametype.KRB_NT_SRV_INST, NameString: []string{"krbtgt", realm}})
	if !ok {
		return grant{}, fmt.Errorf("it has no ticket for the KDC of %s", realm)
	}
	if err := m.reachable(realm); err != nil {
		return grant{}, err
	}
	g := grant{key: tgt.Key, end: tgt.EndTime, name: cache.GetClientPrincipalName(), realm: realm}
	if err := g.ticket.Unmarshal(tgt.Ticket); err != nil {
		return grant{}, err
	}
	if !g.valid() {
		return grant{}, fmt.Errorf("the ticket of %s@%s ended at %s", g.name.PrincipalNameString(), realm, g.end.Local().Format(time.RFC3339))
	}
	g.client, err = client.NewFromCCache(cache, m.config, client.DisablePAFXFAST(true))
	return g, err
}

func loadKeytab(file string) (kt *keytab.Keytab, err error) {
	defer malformed(&err)
	return keytab.Load(file)
}

func loadCache(file string) (c *credentials.CCache, err error) {
	defer malformed(&err)
	return credentials.LoadCCache(file)
}

// The function `malformed` is deferred where gokrb5 may panic because a file, or an answer of a server or of
// the KDC, is malformed. Then it sets *err.
func malformed(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("malformed: %v", r)
	}
}
