package queue

// Elements with keys. Of those of one key one is claimed at a time, in order; the
// next is free when it is gone for good.
//
// Where an element has a key the znode "keys" is there: producers check it in the
// transaction that stores the element. Every claim writes it, at the version that
// was read before anything else; so claims of such a queue have one order, and what
// one has read is, as far as claims go, still so when it is applied. What else
// may happen in between:
//
//   - An element is removed, buried, or cancelled: then its key is free. It was
//     seen before, so others of its key waited in vain. The removal rings the bell.
//     Clear removes what stands behind before what it waits for, so that nothing
//     is freed that it is about to remove.
//   - An element is given back to its place, by its consumer or because that
//     died: it was there all the time, so the others waited for it and go on to.
//   - An element is given back for later, and so gets another place: that writes
//     "keys" too. Otherwise a claim could look in its new place before it is
//     there, and in the old one after it has gone, and take the next of its key.
//     In its new place it goes before all others of its key, that they wait for,
//     due or not.
//   - An element is sent, or one that was sent for later is due: if it stands before
//     what is claimed it is as if it had been sent a moment later.
//
// An element that is sent for later is not there for its key before its time.
// Between priorities it is the priority that counts, as without keys; but
// one at a time holds across all of them.

// A ward tells, by key, which element alone may be claimed next: none if the value
// is another's name that nobody has.
type ward map[string]string

const nobody = "*"

// allows reports whether e may be claimed as far as its key goes.
func (w ward) allows(e element) bool {
	owner, ok := w[keyOf(e.tag)]
	return keyOf(e.tag) == "" || !ok || owner == e.key()
}

// bar keeps the key of e from everybody but owner, if it has one.
func (w ward) bar(e element, owner string) {
	if key := keyOf(e.tag); key != "" {
		w[key] = owner
	}
}
