package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"strings"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/kerberos"
)

// This file has the global flags for security: the client's credentials, the identity of the
// servers, and the ACL of created znodes. client.go has all other global flags.

// refuseEmpty returns an error if the command line gives a flag for security an empty text, perhaps from
// a variable that is not set. Without the error, the connection would have no credentials or no TLS.
func refuseEmpty(cmd *cobra.Command, _ []string) error {
	for _, name := range []string{"auth-file", "sasl-user", "sasl-password-file", "keytab", "principal", "tls-ca", "tls-cert", "tls-key"} {
		if f := cmd.Flag(name); f.Changed && f.Value.String() == "" {
			return fail(exitUsage, "--%s: is empty", name)
		}
	}
	return nil
}

// The method `security` returns the options from the flags for security.
func (c *client) security() (opts []zsync.Option, err error) {
	auths, err := c.credentials()
	if err != nil {
		return nil, err
	}
	for _, a := range auths {
		scheme, credentials, _ := strings.Cut(a, ":")
		opts = append(opts, zsync.WithAuth(scheme, []byte(credentials)))
	}
	mechanism, err := c.sasl.mechanism(c.getenv("ZSYNC_SASL_PASSWORD"))
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		opts = append(opts, zsync.WithSASL(mechanism))
	}
	acl, err := c.accessList(len(auths) > 0 || mechanism != nil)
	if err != nil {
		return nil, err
	}
	opts = append(opts, zsync.WithACL(acl))
	config, err := c.tls.config()
	if config != nil {
		opts = append(opts, zsync.WithTLS(config))
	}
	return opts, err
}

// The method `credentials` returns the credentials of the environment, of --auth-file and of
// --auth.
func (c *client) credentials() (auths []string, err error) {
	add := func(from string, status int, text string) {
		if strings.IndexByte(text, ':') < 1 && err == nil { // the message omits the text, which may be a password
			err = fail(status, "%s: credentials must be SCHEME:CREDENTIALS, such as digest:user:password", from)
		}
		auths = append(auths, text)
	}
	if env := c.getenv("ZSYNC_AUTH"); env != "" {
		add("ZSYNC_AUTH", exitUsage, env)
	}
	if c.authIn != "" {
		data, err := os.ReadFile(c.authIn)
		if err != nil {
			return nil, fail(exitConfig, "--auth-file: %w", err)
		}
		before := len(auths)
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimRight(line, "\r\n"); line != "" {
				add("--auth-file "+c.authIn, exitConfig, line)
			}
		}
		if len(auths) == before {
			return nil, fail(exitConfig, "--auth-file %s: there is nothing in it", c.authIn)
		}
	}
	for _, a := range c.auth {
		add("--auth", exitUsage, a)
	}
	return auths, err
}

// accessList returns the ACL from --acl. With credentials, the default is an ACL that gives all
// permissions to the creator alone.
func (c *client) accessList(credentials bool) (acl []zk.ACL, err error) {
	entries := c.acl
	if len(entries) == 0 {
		entries = []string{"open"}
		if credentials {
			entries = []string{"creator"}
		}
	}
	for _, e := range entries {
		switch e {
		case "open":
			acl = append(acl, zk.WorldACL(zk.PermAll)...)
			continue
		case "creator":
			if !credentials {
				return nil, fail(exitUsage, "--acl creator: there are no credentials; give --auth-file, --sasl-user or --kerberos")
			}
			acl = append(acl, zk.AuthACL(zk.PermAll)...)
			continue
		}
		scheme, rest, ok := strings.Cut(e, ":")
		i := strings.LastIndexByte(rest, ':') // an ID may contain colons
		if !ok || i < 0 {
			return nil, fail(exitUsage, "--acl %q: want SCHEME:ID:PERMS, open or creator", e)
		}
		perms, err := permissions(rest[i+1:])
		if err != nil {
			return nil, fail(exitUsage, "--acl %q: %w", e, err)
		}
		acl = append(acl, zk.ACL{Perms: perms, Scheme: scheme, ID: rest[:i]})
	}
	return acl, nil
}

// The function `permissions` parses letters such as cdrwa, as ZooKeeper's own command does.
func permissions(letters string) (perms int32, err error) {
	if letters == "" {
		return 0, errors.New("there are no permissions: want letters of cdrwa")
	}
	for _, l := range letters {
		switch l {
		case 'r':
			perms |= zk.PermRead
		case 'w':
			perms |= zk.PermWrite
		case 'c':
			perms |= zk.PermCreate
		case 'd':
			perms |= zk.PermDelete
		case 'a':
			perms |= zk.PermAdmin
		default:
			return 0, errors.New("permissions are letters of cdrwa: create, delete, read, write, administer")
		}
	}
	return perms, nil
}

// saslFlags has the flags for SASL. The password is not a flag, because every user of the machine
// can see flags.
type saslFlags struct {
	user, passwordIn          string // DIGEST-MD5
	kerberos                  bool
	principal, keytab, server string // Kerberos
}

func (f *saslFlags) add(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.user, "sasl-user", "", "`NAME` to authenticate with by SASL DIGEST-MD5; use TLS with it")
	flags.StringVar(&f.passwordIn, "sasl-password-file", "", "`FILE` whose first line is the password of --sasl-user (environment: ZSYNC_SASL_PASSWORD)")
	flags.BoolVar(&f.kerberos, "kerberos", false, "authenticate by Kerberos, with --keytab or with the ticket in kinit's cache; use TLS with it")
	flags.StringVar(&f.keytab, "keytab", "", "`FILE` with the key of --principal, for Kerberos")
	flags.StringVar(&f.principal, "principal", "", "`NAME` to authenticate with by --keytab, such as billing@EXAMPLE.ORG")
	flags.StringVar(&f.server, "server-principal", "", "`NAME` of the servers for Kerberos; their names in --servers replace _HOST (default: zookeeper/_HOST)")
}

// The method `mechanism` returns the mechanism from the flags, or nil.
func (f *saslFlags) mechanism(password string) (zsync.SASLMechanism, error) {
	wantsKerberos := f.kerberos || f.keytab != "" || f.principal != "" || f.server != ""
	switch {
	case wantsKerberos && f.user != "":
		return nil, fail(exitUsage, "--sasl-user and Kerberos are two ways to authenticate: give one")
	case wantsKerberos:
		return f.gssapi()
	case f.user == "":
		if f.passwordIn != "" {
			return nil, fail(exitUsage, "--sasl-password-file goes with --sasl-user")
		}
		return nil, nil
	}
	if f.passwordIn != "" {
		data, err := os.ReadFile(f.passwordIn)
		if err != nil {
			return nil, fail(exitConfig, "--sasl-password-file: %w", err)
		}
		line, _, _ := strings.Cut(string(data), "\n")
		if password = strings.TrimSuffix(line, "\r"); password == "" {
			return nil, fail(exitConfig, "--sasl-password-file %s: its first line is empty", f.passwordIn)
		}
	}
	if password == "" {
		return nil, fail(exitUsage, "--sasl-user needs a password: give --sasl-password-file or set ZSYNC_SASL_PASSWORD")
	}
	return zsync.SASLDigestMD5(f.user, password), nil
}

// The method `gssapi` returns the mechanism for Kerberos.
func (f *saslFlags) gssapi() (m zsync.SASLMechanism, err error) {
	if (f.keytab == "") != (f.principal == "") {
		return nil, fail(exitUsage, "--keytab and --principal go together")
	}
	var opts []kerberos.Option
	if f.server != "" {
		opts = append(opts, kerberos.WithService(f.server))
	}
	if f.keytab != "" {
		m, err = kerberos.Keytab(f.principal, f.keytab, opts...)
	} else {
		m, err = kerberos.Cache("", opts...)
	}
	if err != nil {
		return nil, fail(exitConfig, "%w", err)
	}
	return m, nil
}

// tlsFlags has the flags for TLS.
type tlsFlags struct {
	on            bool
	ca, cert, key string
	name          string
}

func (f *tlsFlags) add(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.BoolVar(&f.on, "tls", false, "encrypt the connections, and check the servers' certificates")
	flags.StringVar(&f.ca, "tls-ca", "", "PEM `FILE` of the authorities that sign the servers' certificates (default: the system's)")
	flags.StringVar(&f.cert, "tls-cert", "", "PEM `FILE` of this client's certificate")
	flags.StringVar(&f.key, "tls-key", "", "PEM `FILE` of the key of --tls-cert")
	flags.StringVar(&f.name, "tls-name", "", "`NAME` that the servers' certificates must have (default: the host of the address)")
}

// The method `config` returns the settings for TLS, or nil if no flag for TLS is set.
func (f *tlsFlags) config() (*tls.Config, error) {
	if !f.on && *f == (tlsFlags{}) {
		return nil, nil
	}
	config := &tls.Config{ServerName: f.name, MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fail(exitConfig, "--tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fail(exitConfig, "--tls-ca %s: there is no certificate in it", f.ca)
		}
	}
	if (f.cert == "") != (f.key == "") {
		return nil, fail(exitUsage, "--tls-cert and --tls-key go together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fail(exitConfig, "--tls-cert: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
