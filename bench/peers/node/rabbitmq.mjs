// RabbitMQ: persistent messages into a durable quorum queue, publisher confirms, manual acknowledgements.
import { asked, need, noop, PAYLOAD, play, QUEUE } from "./load.mjs";

const amqp = need("amqplib");
const body = () => Buffer.from(JSON.stringify(PAYLOAD));
const durable = { durable: true, arguments: { "x-queue-type": "quorum" } };
const persistent = { persistent: true, contentType: "application/json" };
let connection, channel, consumer;

await play({
  async open() {
    connection = await amqp.connect(`amqp://127.0.0.1:${asked.at}`, { noDelay: true });
    channel = await connection.createConfirmChannel();
    await channel.assertQueue(QUEUE, durable);
  },
  empty: () => channel.purgeQueue(QUEUE),
  send: () => new Promise((resolve, reject) => {
    channel.sendToQueue(QUEUE, body(), persistent, (error) => (error ? reject(error) : resolve()));
  }),
  async sendMany(count) {
    for (let sent = 0; sent < count; sent += 1) channel.sendToQueue(QUEUE, body(), persistent);
    await channel.waitForConfirms();
  },
  async work(handled) {
    consumer = await connection.createChannel();
    await consumer.prefetch(asked.prefetch);
    await consumer.consume(QUEUE, async (message) => {
      await noop(JSON.parse(message.content));
      consumer.ack(message);
      handled();
    });
  },
  settled: () => consumer.close(), // comes behind the last acknowledgement; what was not acknowledged would be ready again
  left: async () => (await channel.checkQueue(QUEUE)).messageCount,
});
