/* Runs the chat page's script on a small stand-in for a browser's document. node page.js URL < {"script", "ids"}; prints "ok". */
'use strict';
const assert = require('node:assert'), vm = require('node:vm'), fs = require('node:fs');
const url = process.argv[2], {script, ids} = JSON.parse(fs.readFileSync(0));

class Element {
  constructor(tag) { Object.assign(this, {tag, children: [], own: '', value: '', hidden: false, handlers: {}, attributes: {}, className: '', scrollTop: 0, scrollHeight: 0, clientHeight: 0}); }
  get classList() { return {add: name => { this.className += ' ' + name; }}; }
  get textContent() { return this.own + this.children.map(c => c.textContent).join('|'); }
  set textContent(text) { this.own = String(text); this.children = []; }
  get previousElementSibling() { return this.parentNode.children[this.parentNode.children.indexOf(this) - 1]; }
  append(e) { this.children.push(e); e.parentNode = this; }
  remove() { if (this.parentNode) this.parentNode.children = this.parentNode.children.filter(e => e !== this); }
  replaceChildren() { this.children = []; }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(name, f) { this.handlers[name] = f; }
  focus() {}
  requestSubmit() { this.handlers.submit({preventDefault() {}}); }
}

let answerWith = null; /* a function in the place of the server, or null */
const elements = Object.fromEntries(ids.map(id => [id, new Element(id)])), global = new Element('window');
const context = vm.createContext({
  document: {getElementById: id => elements[id], createElement: tag => new Element(tag), body: new Element('body')},
  addEventListener: (name, f) => global.addEventListener(name, f),
  fetch: (path, o) => answerWith ? answerWith(path, o) : fetch(url + path, o),
  AbortController, TextDecoderStream, JSON, Error,
});
vm.runInContext(script, context);
const see = code => JSON.parse(vm.runInContext(`JSON.stringify(${code})`, context));
const shown = () => elements.log.children.map(e => e.textContent);
const until = async what => { for (let i = 0; !what(); i++) { assert(i < 3000, 'it did not come: ' + what); await new Promise(f => setTimeout(f, 10)); } };
const idle = () => until(() => elements.stop.hidden && !elements.send.disabled);
const send = text => { elements.input.value = text; elements.input.handlers.keydown({key: 'Enter', preventDefault() {}}); };
const ask = async text => { send(text); assert(!elements.stop.hidden); await idle(); };
const stream = (text, more) => () => {
  const head = 'data: ' + JSON.stringify({choices: [{delta: {content: text}}]}) + '\n\n';
  return Promise.resolve(new Response(new ReadableStream({start(c) { c.enqueue(new TextEncoder().encode(head)); more(c); }})));
};
const hanging = (text, o) => stream(text, c => o.signal.addEventListener('abort', () => c.error(o.signal.reason)))();

async function main() {
  elements.stop.hidden = true;
  await until(() => elements.model.textContent === 'apr-demo, context 4096');

  elements.think.value = '0';
  await ask('What is the capital of France?');
  assert.match(shown()[1], /^The capital of France is Paris\.\|\d+ tokens, [\d.]+ a second$/);
  elements.think.value = '1';
  await ask('And of Italy?');
  assert.match(shown()[3], /^Thinking\|[^|]+\|The capital of Italy is Rome\./);
  assert.deepStrictEqual(see('messages.map(m => m.role)'), ['user', 'assistant', 'user', 'assistant']);

  /* A refusal without an answer: the question is back in its field, the conversation as before. */
  for (const [broken, why] of [[() => Promise.resolve(new Response('oops', {status: 502})), /status 502$/], [() => Promise.resolve(Response.json({error: {message: 'too long'}}, {status: 400})), /^too long$/],
    [() => Promise.reject(new TypeError('x')), /cannot be reached$/]]) {
    answerWith = broken;
    await ask('Q');
    assert.match(shown().at(-1), why);
    assert.deepStrictEqual([see('messages.length'), elements.input.value], [4, 'Q']);
  }

  /* Half an answer never looks whole. */
  answerWith = stream('half', c => c.close());
  await ask('Q');
  assert.strictEqual(shown().at(-1), 'half|the connection ended before the answer did');

  /* Stopped: what came is kept. Before anything came, it is as if it had not been asked. */
  elements.clear.handlers.click();
  answerWith = (path, o) => hanging('<b>so', o);
  send('Q');
  await until(() => shown()[1] === '<b>so');
  global.handlers.keydown({key: 'Escape'});
  await idle();
  assert.deepStrictEqual([shown(), see('messages.length')], [['Q', '<b>so|stopped'], 2]);
  answerWith = (path, o) => hanging('', o);
  send('Q2');
  elements.stop.handlers.click();
  await idle();
  assert.deepStrictEqual([shown().length, see('messages.length'), elements.input.value], [2, 2, 'Q2']);

  /* New chat in the middle of an answer: nothing of it gets into the next conversation. */
  answerWith = (path, o) => hanging('old', o);
  send('Q3');
  await until(() => shown().at(-1) === 'old');
  elements.clear.handlers.click();
  await idle();
  assert.deepStrictEqual([shown(), see('messages')], [[], []]);
  answerWith = (path, o) => hanging('', o);
  send('Q4');
  elements.clear.handlers.click();
  await idle();
  assert.deepStrictEqual([shown(), see('messages'), elements.input.value], [[], [], '']);
  answerWith = null;
  elements.think.value = '0';
  await ask('What is the capital of France?');
  assert.deepStrictEqual(see('messages.map(m => m.content)'), ['What is the capital of France?', 'The capital of France is Paris.']);
  console.log('ok');
}

main().catch(e => { console.log(e.stack); process.exit(1); });
